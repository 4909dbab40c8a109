"""Seeds are an axis: a member is the single run of its seed."""

import jax
import numpy as np
import pytest

pytestmark = pytest.mark.agents

HOST, NATIVE = "Pendulum-v1", "jax:Pendulum-v1"


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


def weights(trainer, member):
    actor = jax.tree.map(lambda x: np.asarray(x[member]), trainer.learner.state.params.actor)
    return np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(actor)])


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [("td3", HOST), slow("sac", NATIVE), slow("td3", NATIVE), slow("sac", HOST)],
)
def test_a_member_equals_the_single_run_of_its_seed(make_trainer, algorithm, env):
    several = make_trainer(algorithm, env, seed=5, num_seeds=4)
    single = make_trainer(algorithm, env, seed=7)
    for trainer in (several, single):
        trainer.advance(120)
    assert several.position.updates >= 100
    np.testing.assert_allclose(weights(several, 2), weights(single, 0), rtol=2e-3, atol=2e-4)
    ring = jax.tree.map(lambda x: np.asarray(x[2], np.float32), several.experience.storage)
    alone = jax.tree.map(lambda x: np.asarray(x[0], np.float32), single.experience.storage)
    for ours, theirs in zip(ring, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-2)
    assert not np.allclose(weights(several, 0), weights(several, 1), atol=1e-3)


# Two runs that differ make the tests of stopped and resumed runs fail as well, on both loops.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "env"),
    [("sac", HOST), slow("td3", NATIVE), slow("sac", NATIVE), slow("td3", HOST)],
)
def test_the_same_seed_gives_the_same_bits_and_another_one_others(make_trainer, algorithm, env):
    def run():
        trainer = make_trainer(algorithm, env, seed=3, num_seeds=2, num_envs=2)
        trainer.advance(60)
        return [weights(trainer, member) for member in (0, 1)]

    (first, other), (again, other_again) = run(), run()
    assert first.tobytes() == again.tobytes() and other.tobytes() == other_again.tobytes()
    assert not np.allclose(first, other, atol=1e-3)
