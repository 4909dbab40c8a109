"""The ring holds exactly the last steps of every lane and samples each alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from listed import BATCH, Listed, Step, draw, histories

from understudy.buffers.replay import add, num_stored, sample
from understudy.types import Transition

SHAPES = [(4, 1), (10, 3)]  # capacity, lanes: the second does not divide


def plain(number):
    return Step(number, float(number), False, False)


@pytest.mark.parametrize("capacity, lanes", SHAPES)
@given(data=st.data())
@settings(max_examples=40)
def test_what_can_be_sampled_is_what_a_list_would_hold(capacity, lanes, data):
    listed = Listed(capacity, lanes)
    for steps in data.draw(histories(lanes)):
        listed.add(steps)
    want = listed.stored()
    assert int(num_stored(listed.ring)) == len(want)
    if not want:
        return
    batch = draw(listed.ring)
    assert set(batch.observation) == set(want)  # all of them, and nothing else
    np.testing.assert_array_equal(batch.action, -batch.observation)
    np.testing.assert_array_equal(batch.next_observation, batch.observation + 0.5)
    for number, reward, discount in zip(
        batch.observation, batch.reward, batch.discount, strict=True
    ):
        lane, place = want[int(number)]
        step = listed.lanes[lane][place]
        assert reward == step.reward
        assert discount == (0.0 if step.terminated else 0.5)


def test_the_oldest_is_overwritten_one_by_one():
    listed = Listed(3, 1)
    for number in range(1, 12):
        listed.add([plain(number)])
        assert set(draw(listed.ring, number).observation) == set(
            range(max(1, number - 2), number + 1)
        )


def test_rows_that_are_not_valid_leave_no_trace():
    """They are written under the cursor, which nobody samples, also when the ring is full."""
    listed = Listed(3, 1)
    for number in range(1, 8):
        listed.add([plain(number)])
        for _ in range(3):
            listed.add([None])
            assert -1000.0 not in draw(listed.ring, number).observation
    assert set(draw(listed.ring).observation) == {5, 6, 7}


def test_the_slot_under_the_cursor_is_never_sampled():
    listed = Listed(8, 2)
    for number in range(1, 40, 2):
        listed.add([plain(number), plain(number + 1)])
        lane = jnp.arange(2)
        spoilt = listed.ring.storage.observation.at[lane, listed.ring.cursor].set(jnp.nan)
        ring = listed.ring._replace(storage=listed.ring.storage._replace(observation=spoilt))
        assert np.all(np.isfinite(draw(ring, number).observation))


@pytest.mark.parametrize("fills", [(7,), (6, 6, 6), (1, 0, 6), (6, 2, 4)])
def test_every_stored_step_is_equally_likely(fills):
    """Also over lanes of different fill: not a lane first and then a step of it."""
    listed = Listed(7 if len(fills) == 1 else 18, len(fills))
    number = 0
    for moment in range(max(fills)):
        steps = []
        for fill in fills:
            number += 1
            steps.append(plain(number) if moment < fill else None)
        listed.add(steps)
    drawn = np.concatenate([draw(listed.ring, seed).observation for seed in range(20)])
    numbers, counts = np.unique(drawn, return_counts=True)
    assert set(numbers) == set(listed.stored()) and counts.sum() == 20 * BATCH
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_draws_are_independent_and_follow_their_key():
    listed = Listed(16, 1)
    for number in range(16):
        listed.add([plain(number)])
    first = draw(listed.ring, 0).observation
    np.testing.assert_array_equal(first, draw(listed.ring, 0).observation)
    assert np.mean(first == draw(listed.ring, 1).observation) < 0.2
    assert np.mean(first[1:] == first[:-1]) < 0.2  # rows of one batch do not repeat each other


def test_rows_and_weights():
    listed = Listed(4, 1)
    listed.add([plain(1)])
    batch = draw(listed.ring)
    np.testing.assert_array_equal(batch.row, np.arange(BATCH))
    np.testing.assert_array_equal(batch.weight, np.ones(BATCH))


@pytest.mark.parametrize("n_step", [1, 3])
def test_rewards_are_scaled_when_sampled_and_kept_raw(n_step):
    listed = Listed(4, 1)
    for number in (3, 4, 5):
        listed.add([plain(number)])
    stored = np.asarray(listed.ring.storage.reward)
    raw = draw(listed.ring, n_step=n_step)
    scaled = draw(listed.ring, reward_scale=0.1, n_step=n_step)
    np.testing.assert_allclose(scaled.reward, 0.1 * raw.reward, rtol=1e-6)
    np.testing.assert_array_equal(scaled.discount, raw.discount)
    np.testing.assert_array_equal(listed.ring.storage.reward, stored)
    assert set(stored[0]) == {0.0, 3.0, 4.0, 5.0}


def test_gamma_is_that_of_the_moment():
    """The ring stores no discount: another γ gives another one from the same steps."""
    listed = Listed(4, 1)
    listed.add([plain(1)])
    assert set(draw(listed.ring, gamma=0.9).discount) == {np.float32(0.9)}
    assert set(draw(listed.ring, gamma=0.99).discount) == {np.float32(0.99)}


def test_members_have_rings_of_their_own():
    one = Listed(4, 1)
    rings = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), one.ring, one.ring)
    numbers = jnp.array([[[10.0]], [[20.0]]])
    flag = jnp.zeros((2, 1), bool)
    step = Transition(numbers, numbers, jnp.array([[10.0], [20.0]]), flag, flag, numbers)
    rings = jax.jit(jax.vmap(add))(rings, step, jnp.array([[True], [True]]))
    keys = jax.random.split(jax.random.PRNGKey(0), 2)

    def take(ring, key):
        return sample(ring, key, 8, gamma=jnp.float32(1.0), reward_scale=jnp.float32(1.0))[0]

    batch = jax.jit(jax.vmap(take))(rings, keys)
    np.testing.assert_array_equal(np.asarray(batch.observation)[..., 0], [[10.0] * 8, [20.0] * 8])
