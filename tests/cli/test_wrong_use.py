"""The command line: what a newcomer types, and one line for each thing that can be wrong."""

import dataclasses
import json
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

import understudy
from understudy import SACConfig, TD3Config, cli
from understudy.runs import checkpoint

SMALL = dict(batch_size=16, buffer_size=512, start_steps=20, min_buffer_size=20)
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
TINY = ["--quiet", "--hidden-sizes=8,8", *FLAGS]


class Boundless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


@pytest.fixture(scope="module", autouse=True)
def boundless():
    gymnasium.register("Boundless-v0", Boundless)
    yield
    del gymnasium.registry["Boundless-v0"]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys):
    """Runs a command in this process: (exit code, standard output, error stream)."""

    def call(*arguments):
        code = 0
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:
            code = exit.code
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def refused(run, tmp_path):
    """The single line with which a command is refused; nothing must have been started."""

    def call(*arguments):
        before = sorted(tmp_path.rglob("*"))
        code, out, err = run(*arguments)
        assert code == 2, (code, out, err)
        assert out == "" and err.count("\n") == 1 and err.startswith("understudy: error: "), err
        assert "Traceback" not in err
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two tiny seeds on the device loop, made by a real process: its directory, and
    what was said."""
    directory = tmp_path_factory.mktemp("cli") / "run"
    words = f"train td3 jax:Pendulum-v1 --steps 60 --seeds 2 --run {directory}".split()
    process = understudy_process(*words, *TINY)
    assert process.returncode == 0, process.stderr
    return directory, process


def understudy_process(*arguments):
    command = [sys.executable, "-m", "understudy.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


# -- wrong use ----------------------------------------------------------------------------------

WRONG = {
    "discrete actions": ("train td3 CartPole-v1", "TD3 needs continuous", "Discrete"),
    "unbounded Box": ("train sac Boundless-v0", "bounded action Box", "RescaleAction"),
    "unknown field": ("train sac Pendulum-v1 --gama 0.9", "unknown flag --gama", "'--gamma'"),
    "a field of the other": ("train sac --policy-delay 2", "unknown flag --policy-delay"),
    "two problems": (
        "train --gamma 1.01 --batch-size 2000 --buffer-size 1000",
        "gamma must be at most 1, got 1.01",
        "batch_size 2000 is larger than buffer_size 1000",
    ),
    "misspelt env": ("train sac Pendulm-v1", 'no environment "Pendulm-v1"', '"Pendulum-v1"'),
    "old version": ("train td3 HalfCheeta-v5", '"HalfCheetah-v5"'),
    "misspelt native env": ("train sac jax:Pendulm-v1", '"jax:Pendulum-v1"'),
    "no such adapter": ("train sac brax:ant", "brax"),
    "negative steps": ("train --steps -5", "--steps", "at least 1", "-5"),
    "steps in words": ("train --steps abc", "--steps", "abc"),
    "half a step": ("train --steps 0.5", "--steps", "0.5"),
    "endless": ("train --steps inf", "--steps", "inf"),
    "no seeds": ("train --seeds 0", "--seeds"),
    "seed in words": ("train --seed abc", "--seed", "abc"),
    "negative seed": ("train --seed -1", "seed", "-1"),
    "endless seed": (f"train --seed {2**70}", "seed"),
    "hidden sizes": ("train --hidden-sizes x", "hidden_sizes", "'x'"),
    "hidden sizes, one": ("train --hidden-sizes 64,x", "hidden_sizes", "'x'"),
    "hidden sizes of 0": ("train --hidden-sizes 0", "hidden_sizes", "at least 1"),
    "activation": ("train --activation rellu", "activation", "'relu'"),
    "a number in words": ("train --learning-rate fast", "learning_rate", "'fast'"),
    "not finite": ("train --learning-rate nan", "learning_rate", "finite"),
    "flag without value": ("train --gamma", "--gamma"),
    "device": ("train --device tpu", "--device", "tpu"),
    "device elsewhere": ("train --device gpu", "gpu", "cpu"),
    "unknown command": ("trian", "unknown command 'trian'", "'train'"),
    "unknown algorithm": ("train sacc Pendulum-v1", "no algorithm 'sacc'", "'sac'"),
    "too many words": ("train sac Pendulum-v1 fast", "unknown argument fast"),
    "eval of nothing": ("eval", "RUN"),
    "eval of no run": ("eval nowhere", "no checkpoint in nowhere"),
    "eval without episodes": ("eval nowhere --episodes 0", "--episodes"),
    "list of what": ("list everything", "everything", "presets"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_answered_in_one_line(refused, case):
    command, *expected = WRONG[case]
    line = refused(*command.split())
    for words in expected:
        assert words in line


def test_a_missing_extra_is_named(refused, monkeypatch):
    """As on a machine without MuJoCo: importing it fails."""
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    line = refused("train", "sac", "HalfCheetah-v5")
    assert '"HalfCheetah-v5"' in line and 'pip install "understudy[mujoco]"' in line


@pytest.mark.parametrize(
    "problem",
    [
        gymnasium.error.DependencyNotInstalled("MuJoCo is not installed, run `pip install mujoco`"),
        ImportError("No module named 'mujoco'"),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_a_missing_extra_however_it_shows(refused, monkeypatch, problem):
    def fail(*arguments):
        raise problem

    monkeypatch.setitem(sys.modules, "mujoco", None)
    monkeypatch.setattr("understudy.envs.make.make_quietly", fail)
    assert 'pip install "understudy[mujoco]"' in refused("train", "sac", "HalfCheetah-v5")


def test_a_run_directory_in_use_is_not_touched(refused, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    assert "thesis is not empty" in refused("train", "--run", "thesis", "--steps", "30", *TINY)
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "years of work"


@pytest.mark.parametrize("place", ["notes", "notes/run"])
def test_a_run_directory_that_cannot_be_one(refused, tmp_path, place):
    (tmp_path / "notes").write_text("mine")
    assert "notes" in refused("train", "--run", place, "--steps", "30", *TINY)


def test_a_damaged_checkpoint(refused, tmp_path):
    (tmp_path / "run").mkdir()
    for text in ("{", "[]", "{}", '{"format": 1}'):
        (tmp_path / "run" / "checkpoint.json").write_text(text)
        (tmp_path / "run" / "state.safetensors").write_bytes(b"")
        assert "run" in refused("eval", "run")
    checkpoint.save(tmp_path / "bare", {}, {"algorithm": "sac"})  # whole, but it says nothing
    assert "bare" in refused("eval", "bare")


def test_a_real_process_has_no_traceback_either(tmp_path):
    process = understudy_process("train", "td3", "CartPole-v1")
    assert process.returncode == 2
    assert process.stdout == "" and process.stderr.count("\n") == 1
    assert "TD3 needs continuous" in process.stderr
    assert not list(tmp_path.iterdir())


def test_importing_the_package_does_not_import_jax():
    code = "import sys, understudy as us; dir(us); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_ctrl_c(run, monkeypatch):
    def interrupt(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_list", interrupt)
    assert run("list") == (130, "", "understudy: interrupted\n")


# -- right use ----------------------------------------------------------------------------------


def test_train_ends_with_where_everything_is(trained):
    directory, process = trained
    assert "TD3 on jax:Pendulum-v1, 60 steps, seeds 0–1" in process.stdout
    assert process.stdout.endswith(f"checkpoint      {directory / 'checkpoint'}\n")
    assert str(directory / "learning_curve.png") in process.stdout
    assert process.stderr == ""  # --quiet
    found = {path.name for path in directory.iterdir()}
    assert found == {"best", "checkpoint", "learning_curve.png", "progress.csv", "run.json"}
    about = json.loads((directory / "run.json").read_text())
    assert about["preset"] == "Pendulum-v1 and your flags" and about["num_seeds"] == 2
    assert about["config"]["hidden_sizes"] == [8, 8]
    assert about["config"]["learning_rate"] == 1e-3  # the preset's, under the flags


def test_eval_prints_one_json_object(trained, run):
    directory, _ = trained
    code, out, err = run("eval", directory, "--episodes", "3", "--json")
    assert code == 0 and err == ""
    result = json.loads(out)
    assert list(result) == ["mean", "std", "iqm", "ci95", "returns"]
    assert np.shape(result["returns"]) == (2, 3) and len(result["ci95"]) == 2
    assert result["mean"] == pytest.approx(np.mean(result["returns"]))
    assert run("eval", directory / "checkpoint", "--episodes", "3", "--json")[1] == out


def test_eval_for_people(trained, run):
    code, out, _ = run("eval", trained[0], "--episodes", "2")
    assert code == 0
    assert "TD3(jax:Pendulum-v1, 60 steps, 2 seeds)" in out
    assert "return over 2 episodes per seed: -" in out


def test_train_on_the_host_makes_a_directory(run, tmp_path):
    words = ("--steps", 40, "--seed", 3, "--envs", 2, "--hidden-sizes", 8)
    code, out, err = run("train", "sac", "Pendulum-v1", *words, "--quiet", *FLAGS)
    assert code == 0 and err == ""
    [directory] = (tmp_path / "runs").iterdir()
    assert directory.name.startswith("sac-Pendulum-v1-")
    assert out.endswith(f"{directory.relative_to(tmp_path) / 'checkpoint'}\n")
    about = json.loads((directory / "run.json").read_text())
    assert about["config"]["hidden_sizes"] == [8]
    assert (about["seed"], about["num_envs"]) == (3, 2)


@pytest.mark.parametrize(("name", "config"), [("sac", SACConfig), ("td3", TD3Config)])
def test_help_documents_every_field(run, name, config):
    code, out, _ = run("train", name, "--help")
    assert code == 0 and f"settings of {name.upper()}" in out
    lines = out.splitlines()
    for field in dataclasses.fields(config):
        flag = "--" + field.name.replace("_", "-")
        [place] = [i for i, line in enumerate(lines) if line.startswith(f"  {flag} ")]
        explained = lines[place].removeprefix(f"  {flag} X").strip() or lines[place + 1].strip()
        assert len(explained) > 10, flag
    for flag in ("--steps", "--seed", "--seeds", "--envs", "--run", "--device"):
        assert f"  {flag} " in out


def test_help_of_the_other_commands(run):
    for words in (["--help"], ["-h"], [], ["eval", "--help"], ["list", "-h"], ["train", "-h"]):
        code, out, err = run(*words)
        assert code == 0 and "understudy" in out and err == ""
    assert "--episodes" in run("eval", "--help")[1]


def test_version(run):
    assert run("--version") == (0, f"understudy {understudy.__version__}\n", "")


def test_lists(run):
    algorithms = run("list")[1].splitlines()
    names = [line.split()[0] for line in algorithms]
    assert names == ["a2c", "ddpg", "ddqn", "mpo", "sac", "td3"]
    assert run("list", "algorithms")[1].splitlines() == algorithms
    envs = run("list", "envs")[1].splitlines()
    assert {"jax:Pendulum-v1", "Pendulum-v1", "HalfCheetah-v5"} <= set(envs)
    presets = run("list", "presets")[1]
    assert "hidden_sizes=64,64" in presets and "HalfCheetah-v5" in presets
