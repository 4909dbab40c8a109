"""Keyword arguments of environments, from an agent's constructor to a loaded one."""

import json

import numpy as np
import pytest

import understudy as us
from tests.envs.test_arguments import Weighted
from tests.faults.hostile_cases import forge, sign
from understudy import cli
from understudy.cli import config_file
from understudy.types import CheckpointError, ConfigError

pytestmark = pytest.mark.agents

NAME = "tests.envs.test_arguments:Weighted"
ARGS = {"weight": 3.0, "limits": (0.5, None)}
SMALL = dict(hidden_sizes=(8,), batch_size=4, buffer_size=64, start_steps=4, min_buffer_size=8)
FLAGS = ["--quiet", "--evaluation-episodes=1", *(
    f"--{name.replace('_', '-')}={value if name != 'hidden_sizes' else 8}"
    for name, value in SMALL.items()
)]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("env_args") / "run"
    agent = us.SAC(NAME, us.SACConfig(**SMALL), env_args=ARGS)
    run = us.RunConfig(evaluation_episodes=1)
    summary = agent.train(20, run=run, run_dir=place, progress=False)
    assert summary.mean == 15.0  # evaluation plays with the arguments, too
    agent.close()
    return place


def mean(agent):
    found = agent.evaluate(1)["mean"]
    agent.close()
    return found


def test_a_loaded_agent_has_the_arguments(run):
    assert json.loads((run / "run.json").read_text())["env_args"]["weight"] == 3.0
    agent = us.load(run)
    assert agent.env_args == ARGS
    agent.train(5, progress=False)
    assert mean(agent[0]) == 15.0
    assert mean(agent) == 15.0


def test_arguments_can_be_replaced(run):
    assert mean(us.load(run, env_args={"weight": 2.0})) == 10.0
    assert mean(us.load(run, env_args={})) == 5.0
    assert mean(us.load(run, env=NAME)) == 15.0
    assert mean(us.load(run, env=NAME, env_args={"length": 4})) == 4.0
    assert mean(us.load(run, env=Weighted)) == 5.0  # another environment has its own
    with pytest.raises(ConfigError, match="given by its name"):
        us.load(run, env=Weighted, env_args={"length": 4})


@pytest.mark.fault(51, "us.load refuses arguments that name a module or a file")
def test_a_file_decides_no_path(run, tmp_path):
    place = us.load(run).save(tmp_path / "saved")
    for wrong in ({"weight": {"a": 1}}, {"a b": 1}, ["weight"], {"weight": [[1]]}):
        sign(place, env_args=wrong)
        with pytest.raises(CheckpointError, match="env_args"):
            us.load(place)
    sign(place, env_args={"weight": "../payload"})
    with pytest.raises(CheckpointError, match="may name a module or a file"):
        us.load(place)
    assert mean(us.load(place, env_args={"weight": 1.0})) == 5.0
    with pytest.raises(us.UnderstudyError, match=r"can only act: .*weight='\.\./payload'"):
        us.load(place, trust_environment=True).evaluate(1)


def test_quality_diversity_takes_arguments(tmp_path):
    config = us.MAPElitesConfig(generation_size=4, grid=(2, 2), hidden_sizes=(4,))
    run = us.QDRunConfig(reevaluation_episodes=0)
    found = us.MAPElites("jax:PointNavigation-v0", config, env_args={"max_steps": 3})
    found.illuminate(4, run_dir=tmp_path / "run", progress=False, run=run)
    again = us.MAPElites.load(tmp_path / "run")
    assert again.env_args == {"max_steps": 3} and again.repertoire.best.env_args == again.env_args
    filled = again.repertoire.filled  # in longer episodes their fitness would be another
    np.testing.assert_array_equal(again.replay(filled).fitness, again.repertoire.fitness[:, None])
    forge(tmp_path / "run", env_args={"max_steps": "/etc"})
    with pytest.raises(CheckpointError, match="may name a module or a file"):
        us.MAPElites.load(tmp_path / "run")


def command(capsys, *words):
    code = 0
    try:
        cli.main([str(word) for word in words])
    except SystemExit as end:
        code = end.code
    return code, *capsys.readouterr()


def test_commands_take_arguments(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--env-arg", "weight=2", "--env-arg", "limits=0.5,1", "--env-arg=render_mode=None"]
    code, _, err = command(
        capsys, "train", "sac", NAME, "--steps", 20, "--run", "run", *words, *FLAGS
    )
    assert code == 0, err
    given = {"weight": 2, "limits": [0.5, 1], "render_mode": None}
    assert config_file.env_args_in(config_file.read(tmp_path / "run/config.toml")) == given
    _, out, _ = command(capsys, "eval", "run", "--episodes", 1, "--json")
    assert json.loads(out)["mean"] == 10.0
    more = ["--env-arg", "length=3"]
    _, out, _ = command(capsys, "eval", "run", "--episodes", 1, "--json", *more)
    assert json.loads(out)["mean"] == 3.0
    assert command(capsys, "resume", "run", "--steps", 25, "--quiet")[0] == 0
    assert us.load("run").env_args == given | {"limits": (0.5, 1)}
    _, out, _ = command(
        capsys, "train", "--config", "run/config.toml", "--env-arg", "weight=5", "--print-config"
    )
    assert out.endswith('[env_args]\nweight = 5\nlimits = [0.5, 1]\nrender_mode = "none"\n')
    _, out, _ = command(
        capsys, "train", "sac", "Pendulum-v1", "--config", "run/config.toml", "--print-config"
    )
    assert "env_args" not in out  # they belong to the environment that the file names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train sac Pendulum-v1 --env-arg g", "must be NAME=VALUE, such as frame_skip=2, got 'g'"),
        ("train sac Pendulum-v1 --env-arg gravity=2", "its arguments are (render_mode=None, g="),
        ("train --config bad.toml", "env_args is a table: write [env_args]"),
    ],
)
def test_wrong_arguments_of_commands_are_one_line(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("env_args = 3\n")
    code, _, err = command(capsys, *words.split())
    assert code == 2 and err.count("\n") == 1 and message in err


@pytest.mark.processes
def test_workers_train_with_the_arguments():
    agent = us.SAC(NAME, us.SACConfig(**SMALL), env_workers=1, env_args={"weight": 2.0})
    summary = agent.train(12, progress=False, run=us.RunConfig(log_every=12, evaluation_episodes=1))
    agent.close()
    assert summary.history[-1]["rollout/ep_rew_mean"] == 10.0


def test_sweeps_take_arguments():
    args = {"weight": 3.0, "limits": (0.5, 1.0)}
    result = us.sweep.sweep("sac", NAME, {"tau": [0.01, 0.02]}, steps=10, episodes=1, num_envs=1,
                      config=us.SACConfig(**SMALL), env_args=args)  # fmt: skip
    assert result.best.mean == 15.0
    assert "--env-arg weight=3 --env-arg limits=0.5,1" in result.command()
