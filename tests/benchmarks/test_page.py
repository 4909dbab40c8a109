"""The numbers of the documentation follow from the files of benchmarks/results."""

import re

import claims
import numpy as np
import page
import pytest
from measured import aggregates, files, quality, recipe_costs, returns, speeds, tables, text
from PIL import Image

README = next(each for each in claims.pages() if each.path == "README.md")
SAC = "{{returns.mean learning_sac_HalfCheetah-v5}}"
UNSEEN = "learning_sac_HalfCheetah-v5_seeds5to9"


def test_the_page_follows_from_the_results():
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run: python benchmarks/page.py"


@pytest.mark.parametrize("each", claims.pages(), ids=lambda each: each.path)
def test_the_numbers_of_a_page_follow_from_the_results(each):
    assert claims.problems(each) == []


@pytest.mark.parametrize("each", claims.pages(), ids=lambda each: each.path)
def test_every_claim_computes_something(each):
    assert [claim for claim in each.claims if not text.PLACEHOLDER.search(claim)] == []


def test_a_wrong_number_is_found():
    stated = claims.Page("x.md", (f"SAC reaches {SAC}.",))
    assert claims.missing_claims(stated, "SAC\nreaches   6,290.") == []
    (problem,) = claims.missing_claims(stated, "SAC reaches 6,291.")
    assert "SAC reaches 6,290." in problem


def test_a_number_without_a_claim_is_found():
    stated = claims.Page("x.md", (f"| SAC | {SAC} | 12 |",), ("Speed",), ("in 5 steps",))
    kept = "# A\n3\n## Speed\n[TD3](x#9) in 5 steps\n### More\n"
    one = stated._replace(claims=(f"| SAC | {SAC} |",))
    assert claims.uncovered_numbers(one, kept + "| SAC | 6,290 |\n## B\n4") == []
    (problem,) = claims.uncovered_numbers(one, kept + "| SAC | 6,290 | 7.5 |")
    assert "computes 7.5" in problem
    (problem,) = claims.uncovered_numbers(stated, kept + "| SAC | 6,290 | 12 |")
    assert "computes 12" in problem  # the claim itself states it
    assert len(claims.uncovered_numbers(one, kept + "6,290 and 5–9")) == 3


def test_every_number_of_the_readme_is_checked():
    """Changes each number of the sections; a claim or the list of phrases must notice."""
    content = (claims.REPOSITORY / README.path).read_text(encoding="utf-8")
    start, end = content.index("## Why switch"), content.index("## Install")
    changed = 0
    for number in claims.NUMBER.finditer(content[:end], start):
        line = content[content.rindex("\n", 0, number.start()) + 1 : number.start()]
        if "](" in line and ")" not in line.rpartition("](")[2]:
            continue  # the target of a link
        wrong = content[: number.start()] + "987.6" + content[number.end() :]
        found = claims.uncovered_numbers(README, wrong)
        assert any("987.6" in problem for problem in found), number
        changed += 1
    assert changed > 10


def test_numbers_are_written_as_text():
    assert [files.number(x) for x in (-0.01, -155.34, 999.96, 6023.5)] == [
        "0.0", "−155.3", "1,000", "6,024",
    ]  # fmt: skip
    assert files.number(-180.5, "0") == "−180" and files.significant(10_634.0) == "10,630"
    assert files.in_words(["1", "2", "3"]) == "1, 2 and 3" and files.in_words(["1"]) == "1"
    assert files.table(["", "a"], [["b", ""]]) == "| | a |\n|---|---|\n| b | |"


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of results of its own, and nothing remembered of the other one."""
    caches = [files.rows, files.cell, returns.final_rows, speeds.rates]
    monkeypatch.setattr(files, "RESULTS", tmp_path)
    for each in caches:
        each.cache_clear()
    yield tmp_path
    for each in caches:
        each.cache_clear()


def test_returns_by_hand(results):
    lines = ["algorithm,env,seed,steps,kind,episodes,mean_return,wall_seconds"]
    lines += [f"sac,Walk,{seed},500,training,5,{seed}.5,1" for seed in (3, 4)]
    lines += ["sac,Walk,3,2000000,final,20,-10,1", "sac,Walk,4,2000000,final,20,-21.5,1"]
    (results / "learning_sac_Walk.csv").write_text("\n".join(lines))
    assert returns.steps_and_range("learning_sac_Walk") == "2M: −15.8 (−21.5 … −10.0)"
    assert returns.seeds("learning_sac_Walk") == "3–4"
    assert returns.near_steps("learning_sac_Walk", "510") == "3.5 and 4.5"
    assert returns.at_steps("learning_sac_Walk", "400") == "4.0 (3.5 … 4.5)"
    assert returns.seconds("learning_sac_Walk") == "1"
    (results / "proof").mkdir()
    (results / "proof" / "sac_Walk.csv").write_text("\n".join(lines[:-2]))
    with pytest.raises(KeyError, match="no final evaluation"):
        returns.mean("proof/sac_Walk")


def test_speeds_by_hand(results):
    rounds = [("understudy-ddqn", 2, 1), ("sb3-dqn", 4, 2), ("sb3-dqn-1thread", 2, 4)]
    lines = ["contestant,round,steps,seconds"]
    lines += [f"{name},{k + 1},8,{(a, b)[k]}" for k in (1, 0) for name, a, b in rounds]
    (results / "speed_cpu.csv").write_text("\n".join(lines))
    # Rounds of 4 and 8 steps/s against 2 and 4 with the default threads, 4 and 2 with one.
    assert speeds.median_speed("ddqn") == "6" and speeds.against("ddqn", "sbx") == ""
    assert speeds.against("ddqn", "sb3") == "3 (2.00×, 2.00–2.00)"
    (results / "speed_cpu_slow.csv").write_text("\n".join(lines).replace("understudy-ddqn,1,8,2",
                                                "understudy-ddqn,1,8,4"))  # fmt: skip
    assert speeds.on_slow_cores("ddqn", "sb3") == "1.50 (1.00–2.00)"


def test_ratios_of_two_commits_by_hand(results):
    slices = ["a,sac,0,10,2,1", "a,sac,1,10,3,2", "a,sac,2,10,4,4", "b,sac,0,10,9,1"]
    header = "reference,case,slice,steps,reference_seconds,seconds"
    (results / "two_commits_cpu.csv").write_text("\n".join([header, *slices]))
    assert speeds.commit_ratio("sac", "a") == "1.50 (1.00 … 2.00)"


def test_rates_and_messages_by_hand(results):
    rates = ["stepping,one,0,1000", "stepping,one,1,3000", "training,one,0,50", "training,two,0,9"]
    header = "what,contestant,round,transitions_per_second"
    (results / "envpool_cpu.csv").write_text("\n".join([header, *rates]))
    assert speeds.envpool_row("one") == "2,000 (1,000 … 3,000) | 50 (50 … 50)"
    messages = ["message,bytes,put_us,call_us", "8×8,24300,700.4,1100.2", "20 steps,3340,,846.3"]
    (results / "cluster_costs.csv").write_text("\n".join(messages))
    assert speeds.policy_message("8×8") == "24 | 700 | 1,100"
    assert speeds.delivery("20 steps", "20") == "167 | 846 | 42"


def test_costs_of_recipes_by_hand(results):
    slices = [
        ("sac", 0, 2, 0.004),
        ("sac-a", 0, 4, 0.016),
        ("sac", 1, 2, 0.006),
        ("sac-a", 1, 4, 0.02),
    ]
    lines = ["method,batch_size,round,updates,seconds"]
    lines += [f"{name},8,{place},{count},{seconds}" for name, place, count, seconds in slices]
    (results / "recipe_cost_cpu.csv").write_text("\n".join(lines))
    assert recipe_costs.rounds("cpu") == "two"
    # 2 and 3 ms without the recipe, 4 and 5 ms with it.
    *_, plain, costly = recipe_costs.table_of("cpu").splitlines()
    assert plain == "| SAC, no recipe | 8 | 2.5 ms | 1.00 (1.00–1.00) |"
    assert costly == "| SAC, a | 8 | 4.5 ms | 1.83 (1.67–2.00) |"


def test_scores_of_quality_diversity_by_hand(results):
    lines = ["seed,evaluations,qd_score,coverage,seconds", "0,50,1,,1", "0,100,8.5,,2"]
    (results / "qd.csv").write_text("\n".join([*lines, "1,100,30,,5", "2,100,20,,4"]))
    assert quality.median_and_seeds("qd") == "20 (9, 30, 20)"
    assert quality.seconds("qd") == "5"


def test_a_table_leaves_out_algorithms_without_results():
    header = tables.unseen_seeds().splitlines()[0]
    assert "| SAC |" in header and "| PQN |" not in header
    assert text.render("{{returns.steps " + UNSEEN + "}} steps") == "100k steps"
    with pytest.raises(KeyError, match="no public function"):
        text.render("{{speeds._whole_runs x y}}")


def test_a_profile_by_hand():
    scores = np.array([[0.0, 0.5], [1.0, 1.5]])
    assert aggregates.profile(scores, np.array([-1.0, 0.5, 1.2, 2.0])).tolist() == [
        1.0, 0.5, 0.25, 0.0,
    ]  # fmt: skip
    low, high = aggregates.profile_band(scores, np.array([0.75]), resamples=50)
    assert low == high == 0.5  # seeds are drawn within tasks


def test_the_pictures_show_the_results():
    """Compares digests; run python benchmarks/profiles.py if they differ."""
    for name, tasks in aggregates.PICTURES.items():
        path = files.RESULTS / name
        with Image.open(path) as picture:
            assert picture.info[aggregates.DIGEST] == aggregates.digest(tasks), name
        assert path.stat().st_size < 100_000


def test_the_page_names_every_picture():
    written = page.PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^]]*\]\(\.\./benchmarks/results/(\S+)\)", written)
    assert set(aggregates.PICTURES) <= set(shown)
