"""Quality-diversity from the command line, from the first generation to a policy of one file."""

import dataclasses
import json
import re
import signal
import tomllib
from pathlib import Path

import numpy as np
import pytest

import understudy
from understudy.agent.illumination import METHODS
from understudy.algorithms.config import field_docs, shown_name
from understudy.cli.illuminate import IlluminationSettings
from understudy.cli.parsing import show
from understudy.cli.settings import RunSettings, field_names
from understudy.distributed.config import Cluster
from understudy.envs.fault_guard import Guard
from understudy.qd.illuminators import NativeIlluminator
from understudy.runner import load as load_player
from understudy.runs.config import QDRunConfig
from understudy.runs.csv_log import read_csv

pytestmark = pytest.mark.agents

PAGE = Path(__file__).resolve().parents[2] / "docs" / "quality_diversity.md"
ENV = "jax:PointNavigation-v0"
SECTIONS = {one: field_names(one) for one in (IlluminationSettings, RunSettings, Guard)}
SECTIONS |= {Cluster: ["collectors", "address"], QDRunConfig: field_names(QDRunConfig)}
RUN_NAMES = [name for names in SECTIONS.values() for name in names]
SHARED = ["--quiet", "--generation-size=8", "--cells=40", "--hidden-sizes=8", "--episode-length=20"]
TINY = [
    *SHARED,
    *["--critic-hidden-sizes=8", "--critic-steps=2", "--policy-steps=2", "--batch-size=8"],
    "--buffer-size=1024",
]


@pytest.fixture(scope="module")
def illuminated(tmp_path_factory, command):
    """A finished run: its directory, and what was said."""
    directory = tmp_path_factory.mktemp("cli") / "run"
    words = f"--evaluations 35 --log-every 1 --reevaluation-episodes 2 --run {directory}".split()
    code, out, err = command("illuminate", ENV, *words, *TINY)
    assert code == 0 and err == "", err
    return directory, out


@pytest.fixture(scope="module")
def repertoire(illuminated):
    return understudy.PGAME.load(illuminated[0]).repertoire


def test_it_says_what_starts_and_ends_with_where_everything_is(illuminated):
    directory, out = illuminated
    first, behaviors, place, time, found, corrected, *files, python, last = out.splitlines()
    preset = "PointNavigation-v0 and your flags"
    assert first == f"PGA-ME on {ENV}, 40 evaluations, preset: {preset}"
    assert behaviors == "behaviors       x, y; a CVT of 40 cells"
    assert place == f"run directory   {directory}"
    assert re.fullmatch(r"illuminated for \d+\.\d s \([\d,]+ evaluations/s\)", time)
    log = read_csv(directory / "progress.csv")
    told = {name: log[f"qd/{name}"][-2] for name in ("qd_score", "coverage", "score_offset")}
    shown = re.search(
        r"QD-score ([\d,.]+) above (\S+), coverage ([\d.]+)%, best fitness \S+", found
    )
    numbers = [float(number.replace(",", "")) for number in shown.groups()]
    expected = [told["qd_score"], told["score_offset"], 100 * told["coverage"]]
    assert numbers == pytest.approx(expected, rel=0.01)
    assert corrected.startswith("corrected       QD-score ")
    assert corrected.endswith("(over 2 fresh episodes each)")
    assert [line.split()[0] for line in files] == ["heat", "curves", "checkpoint"]
    assert all(Path(line.split()[-1]).exists() for line in files)
    assert python == f'in Python       us.PGAME.load("{directory}").repertoire.select([…])'
    assert last.startswith(
        f"next: understudy report {directory} · understudy eval {directory} --at"
    )
    about = json.loads((directory / "run.json").read_text())
    assert about["preset"] == preset and about["config"]["hidden_sizes"] == [8]


def test_a_run_keeps_its_file(run, illuminated):
    kept = (illuminated[0] / "config.toml").read_text()
    code, out, _ = run("illuminate", "--config", illuminated[0] / "config.toml", "--print-config")
    assert code == 0 and out == kept
    plan = tomllib.loads(kept)
    assert list(plan) == ["algorithm", "env", "run", "pga-me"]
    assert list(plan["run"]) == RUN_NAMES
    assert plan["run"]["evaluations"] == 40 and plan["pga-me"]["cells"] == 40


def test_the_method_may_be_left_out_and_so_may_the_environment(run):
    def planned(*words):
        code, out, err = run("illuminate", *words, "--print-config")
        assert code == 0 and err == "", err
        plan = tomllib.loads(out)
        return plan["algorithm"], plan["env"]

    assert planned() == planned("pga-me") == planned(ENV) == ("pga-me", ENV)
    assert planned("MAP-Elites") == planned("map-elites", ENV) == ("map-elites", ENV)


@pytest.mark.mujoco
@pytest.mark.processes  # importing MuJoCo starts one, to look for libraries
def test_defaults_that_depend_on_something(run, tmp_path):
    def planned(*words):
        return tomllib.loads(run("illuminate", "map-elites", *words, "--print-config")[1])["run"]

    plan = planned(ENV, "--generation-size", 100)
    assert (plan["evaluations"], plan["log_every"]) == (5_000, 1)
    plan = planned("Walker2d-v5", "--generation-size", 100)
    assert (plan["evaluations"], plan["log_every"]) == (20_000, 4)
    assert planned("--generation-size", 8, "--evaluations", 9)["evaluations"] == 16
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", METHODS)
def test_help_documents_every_field(run, name):
    code, out, _ = run("illuminate", name, "--help")
    assert code == 0 and f"settings of {shown_name(name)}" in out
    config = METHODS[name].config_class
    for name in (*field_names(config), *RUN_NAMES):
        assert f"  --{name.replace('_', '-')} " in out


def interrupt(monkeypatch, number):
    """A signal in the third generation."""
    calls, advance = [], NativeIlluminator.advance

    def ring(self, generations):
        calls.append(generations)
        if len(calls) == 3:
            signal.raise_signal(number)
        advance(self, generations)

    monkeypatch.setattr(NativeIlluminator, "advance", ring)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_an_interruption_says_how_to_go_on_and_resume_does(
    run, monkeypatch, illuminated, number, code
):
    with monkeypatch.context() as patch:
        interrupt(patch, number)
        words = ["--evaluations", "40", "--log-every", "1", "--reevaluation-episodes", "2"]
        found, out, err = run("illuminate", ENV, "--run", "my run", *words, *TINY)
    assert found == code and "heat map" not in out
    said = "interrupted at 24 of 40 evaluations; go on with: understudy resume 'my run'\n"
    assert err == said
    found, out, err = run("resume", "my run", "--quiet")
    assert found == 0 and err == ""
    preset = "PointNavigation-v0 and your flags"
    first = f"PGA-ME on {ENV}, going on at 24 of 40 evaluations, preset: {preset}"
    assert out.splitlines()[0] == first
    whole, parts = (read_csv(place / "progress.csv") for place in (illuminated[0], Path("my run")))
    for name in whole:
        if name not in ("time/fps", "time/evaluations_per_second", "time/time_elapsed"):
            np.testing.assert_array_equal(whole[name], parts[name], err_msg=name)


def test_resume_counts_evaluations(run, refused, illuminated):
    directory, _ = illuminated
    code, out, _ = run("resume", directory)
    assert code == 0 and f"{directory} is finished: 40 of 40 evaluations are done" in out
    assert f"next: understudy resume {directory} --evaluations 80" in out
    line = refused("resume", directory, "--steps", 100)
    assert "a run of PGA-ME, which counts evaluations: give --evaluations instead" in line


@pytest.mark.slow
def test_resume_until_more_evaluations(run, tmp_path):
    words = [
        "--evaluations",
        "16",
        "--reevaluation-episodes",
        "0",
        "--grid",
        "4,4",
        "--run",
        "more",
    ]
    code, out, _ = run("illuminate", "map-elites", *words, *SHARED)
    assert code == 0 and "a grid of 4×4 cells" in out and "corrected" not in out
    code, out, _ = run("resume", "more", "--evaluations", 30, "--quiet")
    assert code == 0 and "going on at 16 of 32 evaluations" in out
    assert json.loads(Path("more/run.json").read_text())["total_steps"] == 32


def test_an_agents_run_counts_steps(refused, trained):
    line = refused("resume", trained[0], "--evaluations", 100)
    assert "a run of TD3, which counts steps: give --steps instead of --evaluations" in line


@pytest.mark.slow
def test_eval_judges_all_anew(run, illuminated):
    directory, _ = illuminated
    code, out, err = run("eval", directory, "--episodes", 2, "--json")
    assert code == 0 and err == ""
    result = json.loads(out)
    assert list(result) == ["episodes", "score_offset", "found", "corrected"]
    log = read_csv(directory / "progress.csv")
    for name, value in result["corrected"].items():
        assert value == pytest.approx(log[f"qd/corrected_{name}"][-1])
    lines = run("eval", directory, "--episodes", 2)[1].splitlines()
    assert lines[0] == f"PGA-ME on {ENV} after 40 evaluations"
    assert [line.split()[0] for line in lines[1:]] == ["as", "corrected", "next:"]
    newest = directory / "checkpoints" / "000000000040"
    assert run("eval", newest, "--episodes", 2, "--json")[1] == out


@pytest.mark.slow
def test_eval_of_a_behavior(run, illuminated, repertoire):
    directory, _ = illuminated
    code, out, err = run("eval", directory, "--at", "-3,0.5", "--episodes", 3, "--json")
    assert code == 0 and err == ""
    result = json.loads(out)
    assert result["cell"] == repertoire.nearest([-3.0, 0.5])
    place = list(repertoire.filled).index(result["cell"])
    assert result["found"]["fitness"] == pytest.approx(float(repertoire.fitness[place]))
    # Point navigation is deterministic, so that fresh episodes are like the first one.
    assert result["mean"] == pytest.approx(result["found"]["fitness"])
    assert result["descriptor"] == pytest.approx(result["found"]["descriptor"])
    assert np.shape(result["descriptors"]) == (3, 2) and len(result["returns"]) == 3
    lines = run("eval", directory, "--at=-3,0.5", "--episodes", 3)[1].splitlines()
    assert lines[1].startswith(f"nearest         cell {result['cell']}, found with fitness ")
    assert lines[2].startswith("over 3 fresh episodes: fitness ") and ", y " in lines[2]
    assert lines[-1].endswith(f"understudy export {directory} policy.onnx --at -3,0.5")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("policy.safetensors", [0.0, 1.0]),
        pytest.param("policy.onnx", None, marks=pytest.mark.slow),
        pytest.param("policy.safetensors", None, marks=pytest.mark.slow),
        pytest.param("policy.onnx", [0.0, 1.0], marks=pytest.mark.slow),
    ],
)
def test_export(run, illuminated, repertoire, name, place):
    directory, _ = illuminated
    observation = np.array([0.4, 0.2], np.float32)
    agent = repertoire.select(place) if place else repertoire.best
    words = ["--at", "0,1"] if place else []
    code, out, err = run("export", directory, name, *words)
    assert code == 0 and err == ""
    assert re.match(rf"policy          {name} \(PGA-ME on {ENV}, cell \d+\)\n", out)
    if name.endswith("onnx"):
        session = pytest.importorskip("onnxruntime").InferenceSession(name)
        found = session.run(["action"], {"observation": observation[None]})[0][0]
    else:
        found = load_player(name).act(observation)
    assert np.allclose(found, agent.act(observation), atol=1e-4)


def test_plot_and_report(run, illuminated, refused, trained, tmp_path):
    directory, _ = illuminated
    for words, path in (
        (["plot", directory], directory / "learning_curve.png"),
        (["plot", directory, directory, "-o", "two.svg"], Path("two.svg")),
        (["report", directory, "-o", "page.html"], Path("page.html")),
    ):
        path.unlink(missing_ok=True)
        code, out, err = run(*words)
        first, last = out.splitlines()
        assert code == 0 and err == "" and str(path) in first and path.exists()
        assert last.startswith("next: understudy ")
    assert "QD-score" in Path("two.svg").read_text()
    assert "Click a cell" in Path("page.html").read_text()
    assert "plot them apart" in refused("plot", directory, trained[0])


def test_lists(run):
    lines = run("list")[1].splitlines()
    assert {"pga-me", "map-elites"} <= {line.split()[0] for line in lines}
    assert "understudy illuminate" in run()[1]


WRONG = {
    "method": ("illuminate pga-mee", "no method 'pga-mee'", "'pga-me'"),
    "method and environment": (f"illuminate sac {ENV}", "no method 'sac'", "map-elites"),
    "environment": ("illuminate jax:PointNavigatoin-v0", '"jax:PointNavigation-v0"'),
    "discrete actions": ("illuminate CartPole-v1", "continuous"),
    "no descriptor": ("illuminate map-elites Pendulum-v1", "no descriptors of its own"),
    "descriptor": (f"illuminate {ENV} --descriptor positon", '"positon"', "position"),
    "flat grid": (f"illuminate {ENV} --grid 32", "1 axes", "2 numbers"),
    "deep grid": (f"illuminate {ENV} --grid 8,8,8", "8×8×8", "2 numbers"),
    "evaluations": ("illuminate --evaluations 0", "evaluations must be at least 1"),
    "two problems": ("illuminate --seed -1 --cells 1", "seed must be", "cells must be"),
    "flag": ("illuminate --generation-sise 3", "unknown flag", "'--generation-size'"),
    "a setting of the other": ("illuminate map-elites --gamma 0.9", "unknown flag --gamma"),
    "too many words": (f"illuminate pga-me {ENV} fast", "unknown argument fast"),
    "logger": ("illuminate --logger tensorbord", "unknown logger", "'tensorboard'"),
    "device": ("illuminate --device tpu", "device must be one of"),
    "collectors on the device": ("illuminate --collectors 2", "native ones are played on"),
    "address alone": ("illuminate Walker2d-v5 --address auto", "give --collectors, too"),
    "train": ("train pga-me", "understudy illuminate pga-me"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_answered_in_one_line(refused, case):
    command, *expected = WRONG[case]
    line = refused(*command.split())
    for words in expected:
        assert words in line


def test_a_run_directory_in_use_is_not_touched(refused, illuminated):
    assert "is not empty" in refused("illuminate", "--run", illuminated[0], *TINY)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("eval {run} --at 0.5", "2 finite numbers (x, y)"),
        ("eval {run} --at here", "such as 0.2,0.9, got 'here'"),
        ("eval {run} --seed 3", "--seed, --stochastic and --epsilon are for agents"),
        ("export {run} x.onnx --at 1,2,3", "2 finite numbers (x, y)"),
        ("export {run} x.onnx --which best", "--at chooses the policy of a repertoire"),
    ],
)
def test_a_behavior_that_is_none(refused, illuminated, words, problem):
    assert problem in refused(*words.format(run=illuminated[0]).split())


@pytest.mark.parametrize("words", ["eval {run} --at 1,2", "export {run} x.onnx --at 1,2"])
def test_an_agent_has_no_behaviors_to_choose_from(refused, trained, words):
    assert "holds an agent" in refused(*words.format(run=trained[0]).split())


def test_the_page_has_every_key_of_the_run():
    rows = []
    for section, names in SECTIONS.items():
        for field in dataclasses.fields(section):
            if field.name in names:
                default = "–" if field.default in (None, ()) else show(field.default)
                words = " ".join(field_docs(section)[field.name].split())
                rows.append(f"| `{field.name}` | {default} | {words} |")
    assert "\n".join(rows) in PAGE.read_text(), "\n" + "\n".join(rows)
