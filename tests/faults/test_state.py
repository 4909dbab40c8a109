"""What a State holds, and what two runs have in common."""

import hashlib

import pytest

import understudy as us
from tests.faults.resume_cases import CONFIGS, QUICK, arrays_of, make
from understudy.types import CheckpointError, ConfigError

pytestmark = pytest.mark.agents

FLASHSAC = dict(network="flashsac", hidden_sizes=(4,), n_step=1)
FROM_ROLLOUTS = ("A2C", "PPO", "PQN", "REPPO")  # less than one update for each step
CONSTANTS = (".hyper.", ".bound.limit")  # settings that are arrays: no update moves them
RENORM = dict(normalization="batch_renorm", renorm_warm_up=20)
NATIVE = {kind: "jax:Pendulum-v1" for kind in CONFIGS} | dict.fromkeys(
    ("DDQN", "PQN"), "jax:CartPole-v1"
)

# The others run with the long tests; tests/training/test_seed_axis.py covers SAC and TD3 as well.
QUICK_AND_SLOW = [
    kind if kind == "A2C" else pytest.param(kind, marks=pytest.mark.slow) for kind in CONFIGS
]


def weights_hash(kind, seed, directory):
    agent = make(kind, NATIVE[kind], seed=seed)
    agent.train(5_100 if kind in FROM_ROLLOUTS else 1_020, progress=False, run=us.RunConfig(
        log_every=10_000, evaluation_episodes=1))  # fmt: skip
    groups, position = arrays_of(agent, directory / f"{kind}-{seed}")
    assert position["updates"] >= 1_000
    digest = hashlib.sha256()
    for name, array in sorted(groups["learner"].items()):
        digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()


@pytest.mark.fault(18, "the same seed gives the same bits, another seed gives others")
@pytest.mark.parametrize("kind", QUICK_AND_SLOW)
def test_a_seed_is_a_run(tmp_path, kind):
    first = weights_hash(kind, 3, tmp_path)
    assert weights_hash(kind, 3, tmp_path) == first != weights_hash(kind, 4, tmp_path)


@pytest.mark.fault(31, "every array of the state changes in training and is restored from disk")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (kind, {}) if kind in ("A2C", "SAC") else pytest.param(kind, {}, marks=pytest.mark.slow)
        for kind in CONFIGS
    ]
    + [
        pytest.param("TD3", RENORM, id="TD3 with BatchRenorm"),
        pytest.param("SAC", FLASHSAC, id="SAC with the network of FlashSAC"),
    ],
)
def test_every_leaf_changes_and_comes_back(tmp_path, kind, settings):
    agent = make(kind, NATIVE[kind], **settings)
    before = arrays_of(agent, tmp_path / "before")[0]["learner"]
    agent.train(240, progress=False, run=QUICK)
    after = arrays_of(agent, tmp_path / "after")[0]["learner"]
    back = arrays_of(us.load(tmp_path / "after"), tmp_path / "back")[0]["learner"]
    assert before.keys() == after.keys() == back.keys()
    for name, array in after.items():
        assert back[name].tobytes() == array.tobytes(), name
        if name.startswith("state.") and not any(part in name for part in CONSTANTS):
            assert array.tobytes() != before[name].tobytes(), f"{name} never changed"


@pytest.mark.fault(29, "a checkpoint of another spec or shape is refused, with the differences")
def test_a_checkpoint_that_does_not_fit(tmp_path):
    make("TD3", "jax:Pendulum-v1").save(tmp_path / "a")
    with pytest.raises(CheckpointError, match="another environment"):
        us.load(tmp_path / "a", env="jax:MountainCarContinuous-v0")
    with pytest.raises(CheckpointError, match="a checkpoint of TD3, not of SAC"):
        us.SAC.load(tmp_path / "a")


@pytest.mark.fault(19, "a replay buffer larger than memory is refused, with its size in GiB")
def test_a_ring_that_cannot_fit_is_refused_before_it_is_made():
    with pytest.raises(ConfigError, match=r"needs [\d,.]+ GiB .* lower buffer_size"):
        make("TD3", "jax:Pendulum-v1", buffer_size=10**12).train(10, progress=False)


def test_the_evaluation_of_a_loaded_agent_is_the_same(tmp_path):
    agent = make("DDQN", "CartPole-v1")
    agent.save(tmp_path / "a")
    assert us.load(tmp_path / "a").evaluate(3) == agent.evaluate(3)


@pytest.mark.slow  # in the default run: the test of this fault in tests/agent/test_agent.py
@pytest.mark.fault(32, "without its experience a run continues only on request, after refilling")
@pytest.mark.parametrize("env", ["jax:Pendulum-v1", "Pendulum-v1"])
def test_without_its_experience(tmp_path, env):
    agent = make("TD3", env)
    agent.train(60, progress=False, run=QUICK)
    agent.save(tmp_path / "a", experience=False)
    with pytest.raises(CheckpointError, match="refill=True"):
        us.load(tmp_path / "a").train(60, progress=False, run=QUICK)
    resumed = us.load(tmp_path / "a", refill=True)
    done = arrays_of(resumed, tmp_path / "b")[1]["updates"]
    resumed.train(60, progress=False, run=QUICK)
    gained = arrays_of(resumed, tmp_path / "c")[1]["updates"] - done
    assert 60 - 16 <= gained <= 60 - 15  # none before 16 transitions are there, none made up for
