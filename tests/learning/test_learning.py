"""Agents learn: the marks of the project, measured as it promises them. Slow."""

import json
import subprocess
import sys

import numpy as np
import pytest

import understudy as us

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def trained(kind, env, steps, num_seeds, episodes=20):
    """Returns [seeds, episodes] of agents with the environment's preset."""
    agent = getattr(us, kind)(env, num_seeds=num_seeds)
    assert agent.preset == "Pendulum-v1"
    run = us.RunConfig(log_every=5_000, evaluate_every=0, evaluation_episodes=1)
    summary = agent.train(steps, run=run, progress=False)
    assert summary.steps == steps
    returns = np.array(agent.evaluate(episodes)["returns"])
    agent.close()
    assert returns.shape == (num_seeds, episodes)
    return returns


@pytest.mark.parametrize("kind", ["SAC", "TD3"])
def test_pendulum_on_five_seeds(kind):
    returns = trained(kind, "Pendulum-v1", 20_000, num_seeds=5)
    per_seed = returns.mean(axis=1)
    assert returns.mean() >= -170, per_seed
    assert per_seed.min() >= -400, per_seed  # no seed may be left behind


def test_pendulum_on_the_device():
    returns = trained("SAC", "jax:Pendulum-v1", 20_000, num_seeds=8)
    assert returns.mean() >= -200, returns.mean(axis=1)


def test_understudy_train_alone_solves_pendulum(tmp_path):
    """The embedded default, as a newcomer meets it."""
    command = [sys.executable, "-m", "understudy.cli"]
    train = subprocess.run([*command, "train"], capture_output=True, text=True, timeout=600)
    assert train.returncode == 0, train.stderr
    [run_dir] = (tmp_path / "runs").iterdir()
    assert str(run_dir.relative_to(tmp_path) / "checkpoint") in train.stdout
    assert "SAC on Pendulum-v1, 10,000 steps" in train.stdout
    evaluate = [*command, "eval", str(run_dir), "--episodes", "20", "--json"]
    result = subprocess.run(evaluate, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["mean"] >= -200
