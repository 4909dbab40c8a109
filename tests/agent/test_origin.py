"""A policy file says which policy it holds: the best by evaluation or the last, and how good."""

import json
import shutil

import jax
import numpy as np
import pytest

import understudy as us
from tests.faults.test_best import CONFIG, RUN, Judge
from understudy.types import CheckpointError, ConfigError

pytestmark = pytest.mark.agents

SEEN = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
QUIET = dict(run=RUN, progress=False)
SCORES = ((1.0, 5.0), (4.0, 1.0))  # of two seeds, at steps 30 and 60: the mean is best at 30


def judge(agent, *returns):
    agent.evaluator.runners[agent.evaluator.plan_selection(1)] = Judge(*returns)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(agent, run directory, actions after 30 steps and after 60): best at 30, by its seed 4."""
    directory, actions = tmp_path_factory.mktemp("origin") / "run", []
    agent = us.SAC("jax:Pendulum-v1", CONFIG, seed=3, num_seeds=2)
    for scores in SCORES:
        judge(agent, *scores)
        agent.train(30, run_dir=directory, **QUIET)
        actions.append(agent.act(SEEN))
    return agent, directory, *actions


BEST = {"which": "best", "step": 30, "score": 5.0, "seed": 4}
LAST = {"which": "last", "step": 60, "score": 4.0, "seed": 3}


def check(path, origin, actions):
    player = us.runner.load(path)
    assert player.about["policy"] == origin
    np.testing.assert_allclose(player.act(SEEN), actions, atol=4e-5, rtol=0)  # of ±2


def test_a_run_keeps_the_best(made):
    _, directory, best, _ = made
    check(directory / "policy.safetensors", BEST, best)


def test_export_takes_the_last_or_the_best(made, tmp_path):
    agent, directory, best, last = made
    check(agent.export(tmp_path / "a.safetensors"), LAST, last)
    check(agent.export(tmp_path / "b.safetensors", which="last"), LAST, last)
    check(agent.export(tmp_path / "c.safetensors", which="best"), BEST, best)
    np.testing.assert_array_equal(agent.act(SEEN), last)  # the agent stays the same
    loaded = us.load(directory)
    check(loaded.export(tmp_path / "d.safetensors"), LAST, last)
    check(loaded.export(tmp_path / "e.safetensors", "best"), BEST, best)
    check(us.load(directory / "best").export(tmp_path / "f.safetensors"), BEST, best)
    onnx = pytest.importorskip("onnx").load(agent.export(tmp_path / "g.onnx", "best"))
    about = {entry.key: entry.value for entry in onnx.metadata_props}["understudy.about"]
    assert json.loads(about)["policy"] == BEST


def test_the_score_is_that_of_the_policy_or_none(made, tmp_path):
    _, directory, _, _ = made
    agent = us.load(directory / "best", refill=True)
    halved = jax.tree.map(lambda leaf: leaf * 0.5, agent.get_weights())
    agent.set_weights(halved)
    path = agent.export(tmp_path / "policy.safetensors")
    assert us.runner.load(path).about["policy"] == BEST | {"which": "last", "score": None}

    def stop(row):
        raise KeyboardInterrupt  # before the evaluation at the end

    agent = us.load(directory)
    judge(agent, 0.0, 0.0)
    every = us.RunConfig(log_every=10, evaluate_every=1_000, evaluation_episodes=1)
    with pytest.raises(KeyboardInterrupt):
        agent.train(30, run=every, callbacks=stop, progress=False)
    path = agent.export(tmp_path / "policy.safetensors")
    assert us.runner.load(path).about["policy"] == LAST | {"step": 70, "score": None}


def test_what_cannot_be_exported_is_explained(made, tmp_path):
    agent, directory, _, _ = made
    path = tmp_path / "policy.safetensors"
    with pytest.raises(ConfigError, match='which policy: "best" or "last", got \'newest\''):
        agent.export(path, "newest")
    with pytest.raises(ConfigError, match="no run directory"):
        agent[0].export(path, "best")
    saved = us.load(agent.save(tmp_path / "best"))  # not the best of a run
    with pytest.raises(ConfigError, match="no run directory"):
        saved.export(path, "best")
    copied = tmp_path / "copied"
    shutil.copytree(directory, copied)
    elsewhere = us.load(copied)
    shutil.rmtree(copied / "best")
    with pytest.raises(CheckpointError, match=r"no evaluation of .* has picked a best policy yet"):
        elsewhere.export(path, "best")
    other = us.SAC("jax:Pendulum-v1", CONFIG, seed=3, num_seeds=2)
    other.save(copied / "best")
    with pytest.raises(CheckpointError, match="best belongs to another run"):
        elsewhere.export(path, "best")
    assert not path.exists()
