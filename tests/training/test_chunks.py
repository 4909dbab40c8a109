"""Chunks of several steps: the same steps and updates, handed over fewer times."""

import jax
import numpy as np
import pytest

from understudy.ops.schedules import linear
from understudy.training.learner import Call

pytestmark = pytest.mark.agents

RANDOM = dict(start_steps=1_000, buffer_size=100)  # actions that depend on no policy


def leaves_of(trainer):
    return jax.tree.leaves((trainer.learner, trainer.experience))


def assert_close(one, other):
    for a, b in zip(leaves_of(one), leaves_of(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk_steps", [3, 8])
def test_a_chunk_adds_all_its_steps_and_owes_their_updates(make_trainer, chunk_steps):
    settings = RANDOM | dict(min_buffer_size=20, updates_per_step=0.4)
    one, several = (
        make_trainer("td3", "Pendulum-v1", num_envs=2, chunk_steps=steps, **settings)
        for steps in (1, chunk_steps)
    )
    steps = 5 * chunk_steps * 3 + 1  # one more: the last chunk of each is handed over
    for trainer in (one, several):
        trainer.advance(steps)
    assert one.position == several.position and one.position.updates > 20
    for a, b in zip(
        jax.tree.leaves(one.experience), jax.tree.leaves(several.experience), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_before_learning_has_begun_chunks_change_nothing(make_trainer):
    """The normalizer takes steps in one by one, whatever the length of a chunk."""
    settings = RANDOM | dict(
        min_buffer_size=90, normalize_observations=True, normalize_rewards=True
    )
    one, several = (
        make_trainer("sac", "Pendulum-v1", chunk_steps=steps, **settings) for steps in (1, 4)
    )
    for trainer in (one, several):
        trainer.advance(41)
    assert_close(one, several)


def test_chunk_c_acts_with_the_policy_after_chunk_c_minus_two(make_trainer):
    trainer = make_trainer("sac", "Pendulum-v1", chunk_steps=4, start_steps=0, min_buffer_size=2)
    acted, learned = [], []
    [actor], learn = trainer.collector.actors, trainer.transport.learn
    act = actor.act

    def counted_act(seen, random):
        same = acted and acted[-1][1] is actor.policy
        acted.append((acted[-1][0] if same else len(learned), actor.policy))
        act(seen, random)

    actor.act = counted_act
    trainer.transport.learn = lambda *told: (learned.append(told[0].shape[1]), learn(*told))
    trainer.advance(16)
    # Calls of the learner that were made when each step's policy was asked for: none in the first
    # two chunks, chunk 0 before chunk 2, and so on.
    assert [count for count, _ in acted] == [0] * 4 + [0] * 4 + [1] * 4 + [2] * 4
    assert learned == [4, 4, 4]


def test_each_update_has_the_values_of_its_step(make_trainer):
    trainer = make_trainer("td3", "Pendulum-v1", chunk_steps=4, start_steps=0, min_buffer_size=4)
    trainer.position.horizon = 100
    trainer.schedule({"learning_rate": linear(1e-3, 0.0)})
    told, learn = [], trainer.transport.learn
    trainer.transport.learn = lambda *what: (told.append(what), learn(*what))
    trainer.advance(13)
    _, call, values = told[-1]  # of the steps that end at 9, 10, 11 and 12
    assert call == Call(4, moving=("learning_rate",), steps=(0, 1, 2, 3))
    np.testing.assert_allclose(values[0, :, 0], 1e-3 * (1 - np.arange(9, 13) / 100), rtol=1e-5)
    rate = float(trainer.learner.state.hyper["learning_rate"][0])
    np.testing.assert_allclose(rate, 1e-3 * 0.88, rtol=1e-5)


def test_a_chunk_is_shorter_than_a_lane(make_trainer):
    trainer = make_trainer("td3", "Pendulum-v1", chunk_steps=500, buffer_size=60)
    trainer.advance(130)
    assert int(trainer.experience.stored[0, 0]) == 60


@pytest.mark.processes
def test_seeds_that_take_turns_are_those_of_one_process(make_trainer):
    """Worker processes are stepped in two parts, whose actions are decided in turns."""
    settings = dict(num_seeds=3, num_envs=2, chunk_steps=4, min_buffer_size=8)
    whole = make_trainer("sac", "Pendulum-v1", **settings)
    divided = make_trainer("sac", "Pendulum-v1", workers=3, **settings)
    assert whole.collector.parts == [slice(0, 3)]
    assert divided.collector.parts == [slice(0, 1), slice(1, 3)]
    for trainer in (whole, divided):
        trainer.advance(30)
    assert whole.position == divided.position and whole.position.updates > 20
    assert_close(whole, divided)
    resumed = make_trainer("sac", "Pendulum-v1", workers=3, **settings)
    resumed.restore(divided.snapshot())  # in mid-chunk
    for trainer in (divided, resumed):
        trainer.advance(12)
    for one, other in zip(leaves_of(divided), leaves_of(resumed), strict=True):
        np.testing.assert_array_equal(one, other)
