"""The evidence queue: stops and goes on to the bit, refuses other settings, reports by hand."""

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path

import proof
import proof_report
import proof_rows
import pytest

from understudy.runs.files import lock_file

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
EVALUATION = {"episodes": 2, "final_episodes": 3}
# Replay is learned from after 1,000 steps; the learning rate falls to 0 over the run.
ROW = proof_rows.Row(
    "ddqn", "jax:CartPole-v1", seeds=(3, 4), steps=1_600, evaluate_every=400, **EVALUATION
)
# Eight environments, so that evaluations are not at the multiples of 100.
SINGLE = proof_rows.Row(
    "a2c", "jax:CartPole-v1", seeds=(7,), steps=400, evaluate_every=100, **EVALUATION
)
LEFT_OUT = ("wall_seconds",)  # what a clock has said


def matrices(rows):
    return {"proof": proof_rows.Matrix(rows, "# The page")}


def run(folder, *arguments, matrix=(ROW,)):
    places = ["--work", str(folder / "work"), "--results", str(folder / "results")]
    proof.main(["run", *places, "--commit", "none", *arguments], matrices(matrix))
    return lines(folder, matrix[0])


def lines(folder, row=ROW):
    """Of the CSV, in its order, without times."""
    table = proof_report.read(row.csv(folder / "results"))
    return [
        {name: value for name, value in line.items() if name not in LEFT_OUT}
        for line in table.values()
    ]


def steps_of(found, kind="training"):
    """Of the first seed."""
    same = (line for line in found if (line["kind"], line["seed"]) == (kind, found[0]["seed"]))
    return [int(line["steps"]) for line in same]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder)


@pytest.fixture
def short_logs(monkeypatch):
    """Looks at the clock between evaluations too."""
    monkeypatch.setitem(vars(proof), "LOG_EVERY", 160)  # no part of any program


@pytest.mark.agents
def test_a_run_without_interruptions(uninterrupted):
    folder, found = uninterrupted
    text = ROW.csv(folder / "results").read_text()
    assert len(found) == len(text.splitlines()) - 1 == 2 * (4 + 1)
    assert steps_of(found) == [400, 800, 1_200, 1_600] and steps_of(found, "final") == [1_600]
    assert {line["episodes"] for line in found if line["kind"] == "final"} == {"3"}
    first = found[0]
    assert set(first) == set(proof_report.COLUMNS) - set(LEFT_OUT)
    assert (first["algorithm"], first["env"], first["device"]) == ("ddqn", "jax:CartPole-v1", "cpu")
    assert not list((folder / "work").rglob("checkpoints"))  # large, and of no more use
    seconds = [float(line.rsplit(",")[7]) for line in text.splitlines()[1:]]
    assert seconds == sorted(seconds) and seconds[0] > 0
    stored = json.loads((folder / "results" / f"{ROW.name}.json").read_text())
    assert stored == proof.settings(ROW) and stored["config"]["n_step"] == 3


@pytest.mark.agents
def test_a_complete_row_is_not_run_again(uninterrupted, capsys):
    folder, found = uninterrupted
    assert run(folder) == found
    ROW.csv(folder / "results").unlink()
    assert run(folder) == found  # from the work folder
    assert capsys.readouterr().out == ""


def test_a_row_that_another_process_runs_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(proof, "run_row", lambda row, *_: print(f"runs {row.title}"))
    (tmp_path / "work").mkdir()
    with lock_file(tmp_path / "work" / f"{ROW.name}.lock", proof.RowInUse):
        run(tmp_path, matrix=(ROW, SINGLE))
    out = capsys.readouterr().out
    assert "DDQN on jax:CartPole-v1: left out, process" in out and "runs A2C on" in out
    assert "runs DDQN" not in out
    run(tmp_path)
    assert "runs DDQN" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.agents
def test_time_budgets_change_nothing(uninterrupted, short_logs, tmp_path):
    """Every call has time for one look at the clock, so most stops are between evaluations."""
    seen = []
    for _ in range(20):
        found = run(tmp_path, "--minutes", "0")
        seen.append(len(found))
        if found and steps_of(found, "final"):
            break
    assert found == uninterrupted[1]
    assert len(seen) == 12 and seen == sorted(seen)
    seconds = [float(line["wall_seconds"]) for line in proof_report.read(
        ROW.csv(tmp_path / "results")).values()]  # fmt: skip
    assert seconds == sorted(seconds)  # over all calls


@pytest.mark.slow
@pytest.mark.agents
def test_one_seed_with_several_environments(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", matrix=(SINGLE,))
    assert steps_of(whole) == [104, 200, 304, 400] and len(whole) == 5
    monkeypatch.setitem(vars(proof), "LOG_EVERY", 60)
    for _ in range(20):
        found = run(tmp_path / "parts", "--minutes", "0", matrix=(SINGLE,))
        if len(found) == len(whole):
            break
    assert found == whole


@pytest.mark.slow
@pytest.mark.agents
def test_checkpoints_on_the_way_change_nothing(uninterrupted, short_logs, tmp_path, capsys):
    assert run(tmp_path, "--checkpoint-minutes", "0") == uninterrupted[1]
    assert capsys.readouterr().out.count("training") == 4


@pytest.mark.slow
def test_a_signal_changes_nothing(uninterrupted, short_logs, tmp_path, monkeypatch, capsys):
    plain = proof.Watch.__call__

    def ring(self, facts):
        if facts["time/total_steps"] == 960:
            signal.raise_signal(signal.SIGINT)
        return plain(self, facts)

    monkeypatch.setattr(proof.Watch, "__call__", ring)
    with pytest.raises(SystemExit, match="130"):
        run(tmp_path)
    assert "interrupted" in capsys.readouterr().out
    assert steps_of(lines(tmp_path)) == [400, 800]
    monkeypatch.undo()
    assert run(tmp_path) == uninterrupted[1]


@pytest.mark.slow
@pytest.mark.agents
def test_a_short_row_is_the_beginning_of_the_full_one(uninterrupted, tmp_path):
    found = run(tmp_path, "--steps", "1200")
    assert steps_of(found) == [400, 800, 1_200] and not steps_of(found, "final")
    assert run(tmp_path, "--steps", "1200") == found
    standing = proof_report.standing(ROW, proof_report.read(ROW.csv(tmp_path / "results")))
    assert standing is not None and not standing.complete
    assert standing.progress(ROW) == "1,200 of 1,600"
    # The results may be elsewhere by now: the work folder has them all.
    ROW.csv(tmp_path / "results").unlink()
    assert run(tmp_path) == uninterrupted[1]


@pytest.mark.slow
@pytest.mark.agents
def test_programs_of_fewer_seeds(uninterrupted, tmp_path):
    found = run(tmp_path, "--seeds-per-program", "1", "--minutes", "0", "--steps", "400")
    assert {line["seed"] for line in found} == {"3"}
    found = run(tmp_path)  # seed 3 goes on by itself, as it began
    assert sorted(path.name for path in (tmp_path / "work" / ROW.name).glob("seeds*")) == [
        "seeds3-3", "seeds4-4"]  # fmt: skip
    keys = [(line["seed"], line["steps"], line["kind"]) for line in found]
    assert keys == [(line["seed"], line["steps"], line["kind"]) for line in uninterrupted[1]]
    assert {line["seeds_in_program"] for line in found} == {"1"}


def test_the_first_seeds_alone(monkeypatch, tmp_path):
    begun = []
    monkeypatch.setattr(proof, "run_program", lambda program, *_: begun.append(program.seeds))
    run(tmp_path, "--first-seeds", "1")
    run(tmp_path)
    assert begun == [(3,), (3, 4)]
    (tmp_path / "work" / ROW.name / "seeds3-4").mkdir(parents=True)
    run(tmp_path, "--first-seeds", "1")
    assert begun[2:] == [(3, 4)]  # a program that has begun keeps its seeds
    with pytest.raises(SystemExit):
        run(tmp_path, "--first-seeds", "0")


VICTIM = """
import os, signal, sys
import proof, proof_rows
proof.LOG_EVERY = 160
plain = proof.Watch.__call__

def kill(self, facts):
    asked = plain(self, facts)
    if facts["time/total_steps"] >= {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    return asked

proof.Watch.__call__ = kill
row = proof_rows.Row("ddqn", {env!r}, seeds=(3, 4), steps=1_600, evaluate_every=400, episodes=2,
                final_episodes=3)
matrices = {{"proof": proof_rows.Matrix((row,), "")}}
proof.main(["run", "--checkpoint-minutes", "0", "--commit", "none", *sys.argv[1:]], matrices)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "at"), [("jax:CartPole-v1", 160), ("jax:CartPole-v1", 1_200), ("CartPole-v1", 1_440)]
)
def test_a_killed_run_goes_on_to_the_bit(tmp_path, env, at):
    """Before the first checkpoint, after an evaluation that no checkpoint knows, and between."""
    row = dataclasses.replace(ROW, env=env)
    script = VICTIM.format(at=at, env=env)
    places = ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    command = [sys.executable, "-c", script, *places]
    victim = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True)
    assert victim.returncode == -signal.SIGKILL, victim.stderr
    before = lines(tmp_path, row)
    assert (steps_of(before) if before else []) == [
        step for step in (400, 800, 1_200) if step <= at
    ]
    found, whole = (run(place, matrix=(row,)) for place in (tmp_path, tmp_path / "whole"))
    assert found == whole and len(found) == 10


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.agents
def test_a_changed_preset_is_refused(tmp_path):
    started = run(tmp_path, "--steps", "400")
    path = tmp_path / "results" / f"{ROW.name}.json"
    stored = json.loads(path.read_text())
    stored["config"]["gamma"] = 0.5
    path.write_text(json.dumps(stored))
    with pytest.raises(SystemExit, match=r"DDQN on jax:CartPole-v1: gamma was 0.5, is 0.99"):
        run(tmp_path)
    assert lines(tmp_path) == started
    other = dataclasses.replace(ROW, steps=800)
    with pytest.raises(SystemExit, match="steps was 1600, is 800"):
        run(tmp_path, matrix=(other,))
    found = run(tmp_path, "--restart", "--steps", "400")
    assert found == started and json.loads(path.read_text()) == proof.settings(ROW)


@pytest.mark.slow
@pytest.mark.agents
def test_restart_keeps_rows_whose_settings_are_the_same(tmp_path):
    run(tmp_path, "--steps", "400")
    place = tmp_path / "work" / ROW.name / "seeds3-4"
    before = (place / proof.LINES).stat().st_mtime_ns
    run(tmp_path, "--restart", "--steps", "400")
    assert (place / proof.LINES).stat().st_mtime_ns == before


def test_rows_are_selected_by_name():
    named = [row.name for row in proof.select(proof_rows.QUEUE, ["sac:Ant-v5", "mpo"])]
    assert named == ["sac_Ant-v5", "mpo_HalfCheetah-v5", "mpo_Walker2d-v5"]
    assert proof.select(proof_rows.QUEUE, [])[0].name == "sac_HalfCheetah-v5"
    with pytest.raises(proof.us.UnderstudyError, match="no such row: sac:Pong"):
        proof.select(proof_rows.QUEUE, ["sac:Pong"])


def test_every_row_of_the_matrix_has_a_preset_and_a_published_number():
    for row in proof_rows.QUEUE:
        found = proof.settings(row)
        assert found["preset"] == row.env and row.references and len(row.seeds) == 10
        assert row.steps % row.evaluate_every == 0 and row.evaluate_every % proof.LOG_EVERY == 0


def test_the_pilot_compares_all_recipes_with_plain_sac():
    methods = dict.fromkeys(row.method for row in proof_rows.PILOT)
    recipes = proof.us.SACConfig.recipes
    assert set(methods) == {"sac", *(f"sac-{recipe}" for recipe in recipes)}
    first, *_, last, very_last = methods
    assert first == "sac" and {last, very_last} == {"sac-redq", "sac-droq"}
    for row in proof_rows.PILOT:
        found = proof.settings(row)
        own = recipes[row.recipe].settings if row.recipe else {}
        stored = {name: json.loads(json.dumps(value)) for name, value in own.items()}
        assert stored.items() <= found["config"].items()
        assert found.get("recipe") == row.recipe and row.seeds == (0, 1, 2)
    (row,) = proof.select(proof_rows.PILOT, ["sac-simba:Ant-v5"])
    assert (row.name, row.title) == ("sac-simba_Ant-v5", "SAC, simba on Ant-v5")


# -- the report ---------------------------------------------------------------------------------

SOURCE = proof_rows.Source("Paper", "final", "Someone (2020), table 1")
TASK = {"seeds": (0, 1, 2, 3), "steps": 1_000, "evaluate_every": 500}
DONE = proof_rows.Row("sac", "Hopper-v5", (proof_rows.Reference(3_535, 12, SOURCE),), **TASK)
PARTIAL = proof_rows.Row("td3", "Hopper-v5", **TASK)
MISSING = proof_rows.Row("ddpg", "Hopper-v5", **TASK)


def table(row, evaluations, seeds_in_program=2):
    """From (seed, steps, kind, mean return, seconds)."""
    made = {}
    for seed, steps, kind, mean, seconds in evaluations:
        line = dict.fromkeys(proof_report.COLUMNS, "?") | {
            "algorithm": row.algorithm, "env": row.env, "seed": str(seed), "steps": str(steps),
            "kind": kind, "mean_return": str(mean), "wall_seconds": str(seconds),
            "seeds_in_program": str(seeds_in_program), "commit": "abc+", "device": "NVIDIA H200",
        }  # fmt: skip
        made[seed, steps, kind] = line
    return made


@pytest.fixture
def results(tmp_path):
    scores, early = [1, 2, 3, 6], [9, 5, 1, 1]  # mean 3 at the end, 4 on the way
    done = [(s, 500, "training", early[s], 900) for s in range(4)]
    done += [(s, 1_000, "training", 0, 1_800) for s in range(4)]
    done += [(s, 1_000, "final", scores[s], 1_800) for s in range(4)]
    partial = [(s, 500, "training", 10 * (s == 1), 600) for s in (0, 1)]
    proof_report.write(DONE.csv(tmp_path), table(DONE, done))
    proof_report.write(PARTIAL.csv(tmp_path), table(PARTIAL, partial))
    return tmp_path


def test_the_report_by_hand(results):
    """The seeds' scores are 1, 2, 3 and 6: variance 14 / 4, and 2 and 3 in the middle. Of all
    resamples 13 / 256 have an IQM of 1, and as many one of 6. Two programs took half an hour."""
    proof.main(["report", "--results", str(results)], matrices((DONE, PARTIAL, MISSING)))
    page = (results / "README.md").read_text()
    cells = "3.0 ± 1.9 | 2.5 | 1.0 to 6.0 | 4.0 | 3,535 ± 12 (Paper, final) |"
    assert f"| SAC | Hopper-v5 | 4 | 1,000 | {cells}" in page
    assert "- Paper (final): Someone (2020), table 1" in page
    assert "1.00 h in 2 programs" in page and "NVIDIA H200" in page and "abc+" in page
    assert (
        "| TD3 | Hopper-v5 | 2 of 4 | partial: 500 of 1,000 | 5.0 ± 5.0 | 5.0 | 0.0 to 10.0" in page
    )
    assert "| DDPG | Hopper-v5 | 0 of 4 | missing (0 of 1,000) | –" in page
    assert "![Hopper-v5](Hopper-v5.png)" in page
    assert (results / "Hopper-v5.png").read_bytes().startswith(b"\x89PNG")


def test_the_status(results, tmp_path, capsys):
    options = ["--results", str(results), "--work", str(tmp_path / "work")]
    proof.main(["status", *options], matrices((DONE, PARTIAL, MISSING)))
    found = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in found] == [
        ["done", "sac"],
        ["partial", "td3"],
        ["missing", "ddpg"],
    ]
    assert found[1][3] == "500 of 1,000 steps, 2 of 4 seeds"


def test_a_report_without_any_data(tmp_path):
    proof_report.report((MISSING,), tmp_path, "# The page")
    assert "missing (0 of 1,000)" in (tmp_path / "README.md").read_text()


def test_a_row_is_complete_only_at_its_steps_with_all_seeds():
    short = table(DONE, [(s, 900, kind, 1, 60) for s in range(4) for kind in ("training", "final")])
    found = proof_report.standing(DONE, short)
    assert found is not None and not found.complete and found.progress(DONE) == "900 of 1,000"
    three = table(DONE, [(s, 1_000, "final", s, 60) for s in range(3)])
    found = proof_report.standing(DONE, three)
    assert found is not None and not found.complete and list(found.scores) == [0, 1, 2]
    assert found.progress(DONE) == "1,000"


def test_a_row_of_some_seeds_says_so(tmp_path):
    lines = [(s, 1_000, kind, s, 60) for s in range(3) for kind in ("training", "final")]
    proof_report.write(DONE.csv(tmp_path), table(DONE, lines))
    page = proof_report.report((DONE,), tmp_path, "# The page").read_text()
    assert "| SAC | Hopper-v5 | 3 of 4 | 1,000 | 1.0 ± 0.8 |" in page


def test_without_git_the_commit_is_unknown(tmp_path):
    assert proof_report.find_commit(tmp_path) == "unknown"


@pytest.mark.processes
def test_the_commit_with_git(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    place = tmp_path / "benchmarks" / "results"
    place.mkdir(parents=True)
    (tmp_path / "file").write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    (place / "new.csv").touch()  # what the queue itself writes
    clean = proof_report.find_commit(tmp_path)
    assert len(clean) == 12 and not clean.endswith("+")
    (tmp_path / "file").write_text("2")
    assert proof_report.find_commit(tmp_path) == f"{clean}+"
