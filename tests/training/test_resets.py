"""Resets: networks and optimizers start again, at the same updates in every loop and program."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.distributed.shared_updates import (
    close,
    in_one_process,
    make_experience,
    make_learner,
    make_setup,
)
from understudy.training.learner import updates
from understudy.training.seed_axis import over_seeds
from understudy.training.update import MOST_DISCARDS, reset_networks

pytestmark = pytest.mark.agents


def test_a_reset_initializes_what_learns_and_keeps_the_rest():
    setup = make_setup("sac", 1, normalize_observations=True)
    learner = jax.tree.map(lambda x: x[0], make_learner(setup))
    moved = jax.tree.map(lambda x: x + 1, learner.state)._replace(key=learner.state.key)
    learner = learner._replace(state=moved)

    @jax.jit
    def both(learner):
        after = reset_networks(setup.algorithm, setup.spec, learner, jnp.bool_(True))
        fresh = setup.algorithm.init(setup.spec, jax.random.split(learner.state.key)[1])
        return after, fresh

    after, fresh = both(learner)
    for name in ("params", "targets", "opt_state"):
        close(getattr(after.state, name), getattr(fresh, name), 1e-6)
    for name in ("normalizer", "hyper", "updates"):
        close(getattr(after.state, name), getattr(moved, name), 0.0)
    close((after.meter, after.open_return), (learner.meter, learner.open_return), 0.0)
    assert not np.array_equal(after.state.key, moved.key)
    assert reset_networks(setup.algorithm, setup.spec, learner, False) is learner
    frozen = learner.meter._replace(discarded_in_a_row=jnp.int32(MOST_DISCARDS))
    kept, _ = both(learner._replace(meter=frozen))  # a seed that diverged would not learn again
    close(kept.state._replace(key=moved.key), moved, 0.0)


@pytest.mark.parametrize(
    "settings", [dict(reset_every=3), pytest.param(dict(reset_at=(3,)), marks=pytest.mark.slow)]
)
def test_many_updates_in_one_program_reset_as_single_ones(settings):
    setup = make_setup("ddpg", 2, **settings)
    learner, experience = make_learner(setup), make_experience(setup)
    several, _ = in_one_process(setup, learner, experience, 0, 6)
    # Programs that are compiled for their first index: of whole periods and of parts of one
    static = learner
    for first, count in ((0, 4), (4, 2)) if "reset_every" in settings else ((0, 6),):
        known = partial(updates, setup.algorithm, setup.buffer, first_index=first, count=count)
        static, _ = jax.jit(over_seeds(known, setup.num_seeds))(static, experience)
    one = jax.jit(
        over_seeds(
            lambda learner, data, index: updates(
                setup.algorithm, setup.buffer, learner, data, index, 1
            )[0],
            setup.num_seeds,
            shared=(2,),
        )
    )
    counts = []
    for index in range(6):
        learner = one(learner, experience, jnp.int32(index))
        counts.append(learner.state.opt_state["critic"].count.tolist())
    last = 0 if "reset_every" in settings else 3
    assert counts == [[n, n] for n in (1, 2, 0, 1, 2, last)]
    close(several, learner)
    close(static, learner)
    first, second = (jax.tree.map(lambda x, s=s: x[s], learner.state.params) for s in (0, 1))
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    assert any(not np.array_equal(a, b) for a, b in pairs)  # seeds have weights of their own


@pytest.mark.parametrize(
    "env", [pytest.param("Pendulum-v1", marks=pytest.mark.slow), "jax:Pendulum-v1"]
)
def test_both_loops_reset_after_the_same_updates(make_trainer, env):
    trainer = make_trainer("sac", env, num_seeds=2, reset_every=10)
    trainer.advance(44)
    updates = trainer.position.updates
    assert updates > 20
    state = trainer.learner.state
    assert np.asarray(state.opt_state["actor"].count).tolist() == [updates % 10] * 2
    assert np.asarray(state.updates).tolist() == [updates] * 2
