"""A replay buffer holds exactly the last steps of every lane and samples each alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffers.plain_lists import (
    BATCH,
    SPEC,
    ListedReplay,
    NumberedStep,
    count,
    empty,
    histories,
    hyper,
    one_step,
)  # fmt: skip
from understudy.buffers import ReplayBuffer

SHAPES = [(4, 1), (10, 3)]  # capacity, lanes: the second does not divide


def plain(number):
    return NumberedStep(number, float(number))


@pytest.mark.parametrize("capacity, lanes", SHAPES)
@given(data=st.data())
@settings(max_examples=40)
def test_what_can_be_sampled_is_what_a_list_would_hold(capacity, lanes, data):
    listed = ListedReplay(capacity, lanes)
    for steps in data.draw(histories(lanes)):
        listed.add(steps)
    want = listed.stored()
    assert int(count(listed.buffer, listed.state)) == len(want)
    if not want:
        return
    batch = listed.sample()
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
    listed = ListedReplay(3, 1)
    for number in range(1, 12):
        listed.add([plain(number)])
        assert set(listed.sample(number).observation) == set(range(max(1, number - 2), number + 1))


def test_rows_that_are_not_valid_leave_no_trace():
    """Nowhere in the storage, also when the buffer is full."""
    listed = ListedReplay(3, 1)
    for number in range(1, 8):
        listed.add([plain(number)])
        for _ in range(3):
            listed.add([None])
            assert -1000.0 not in listed.sample(number).observation
            assert -1000.0 not in np.asarray(listed.state.storage.observation)
    assert set(listed.sample().observation) == {5, 6, 7}


def test_the_slot_under_the_cursor_is_never_sampled():
    listed = ListedReplay(8, 2)
    for number in range(1, 40, 2):
        listed.add([plain(number), plain(number + 1)])
        whole, lane = listed.state, jnp.arange(2)
        spoilt = whole.storage.observation.at[lane, whole.cursor].set(jnp.nan)
        listed.state = whole._replace(storage=whole.storage._replace(observation=spoilt))
        assert np.all(np.isfinite(listed.sample(number).observation))
        listed.state = whole


@pytest.mark.parametrize("fills", [(7,), (6, 6, 6), (1, 0, 6), (6, 2, 4)])
def test_every_stored_step_is_equally_likely(fills):
    """Also over lanes of different fill: not a lane first and then a step of it."""
    listed = ListedReplay(7 if len(fills) == 1 else 18, len(fills))
    number = 0
    for moment in range(max(fills)):
        steps = []
        for fill in fills:
            number += 1
            steps.append(plain(number) if moment < fill else None)
        listed.add(steps)
    numbers = np.concatenate([listed.sample(seed).observation for seed in range(20)])
    numbers, counts = np.unique(numbers, return_counts=True)
    assert set(numbers) == set(listed.stored()) and counts.sum() == 20 * BATCH
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_samples_are_independent_and_follow_their_key():
    listed = ListedReplay(16, 1)
    for number in range(16):
        listed.add([plain(number)])
    first = listed.sample(0).observation
    np.testing.assert_array_equal(first, listed.sample(0).observation)
    assert np.mean(first == listed.sample(1).observation) < 0.2
    assert np.mean(first[1:] == first[:-1]) < 0.2  # rows of one batch do not repeat each other


def test_rows_and_weights():
    listed = ListedReplay(4, 1)
    listed.add([plain(1)])
    batch = listed.sample()
    np.testing.assert_array_equal(batch.row, np.arange(BATCH))
    np.testing.assert_array_equal(batch.weight, np.ones(BATCH))


@pytest.mark.parametrize("n_step", [1, 3])
def test_rewards_are_scaled_when_sampled_and_stored_raw(n_step):
    listed = ListedReplay(4, 1)
    for number in (3, 4, 5):
        listed.add([plain(number)])
    stored = np.asarray(listed.state.storage.reward)
    raw = listed.sample(n_step=n_step)
    scaled = listed.sample(reward_scale=0.1, n_step=n_step)
    np.testing.assert_allclose(scaled.reward, 0.1 * raw.reward, rtol=1e-6)
    np.testing.assert_array_equal(scaled.discount, raw.discount)
    np.testing.assert_array_equal(listed.state.storage.reward, stored)
    assert set(stored[0]) == {0.0, 3.0, 4.0, 5.0}


def test_gamma_is_that_of_the_moment():
    """The buffer stores no discount: another γ gives another one from the same steps."""
    listed = ListedReplay(4, 1)
    listed.add([plain(1)])
    assert set(listed.sample(gamma=0.9).discount) == {np.float32(0.9)}
    assert set(listed.sample(gamma=0.99).discount) == {np.float32(0.99)}


def test_seeds_have_buffers_of_their_own():
    buffer = ReplayBuffer(SPEC, 4, 1, batch_size=8)
    pair = jax.tree.map(lambda x: np.stack([x, x]), empty(buffer))
    chunks = [one_step([plain(number)]) for number in (10, 20)]
    pair = jax.jit(jax.vmap(buffer.add))(pair, jax.tree.map(lambda *x: np.stack(x), *chunks))
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    batch, _ = jax.jit(jax.vmap(lambda state, key: buffer.sample(state, key, hyper())))(pair, keys)
    np.testing.assert_array_equal(np.asarray(batch.observation)[..., 0], [[10.0] * 8, [20.0] * 8])
