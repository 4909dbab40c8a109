"""A frame replay buffer gives back every stack, sum and final frame that the environments gave,
and no other."""

import jax
import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.buffers.frame_lists import (
    filled,
    histories,
    intact_steps,
    num_stored,
    number_of,
    play,
    sample,
    some,
    spec_of,
    summed,
)  # fmt: skip
from tests.buffers.plain_lists import empty, hyper
from understudy.buffers import FrameReplayBuffer

SHAPES = [(3, 1, 1), (9, 1, 4), (20, 3, 4), (12, 2, 1)]  # capacity, lanes, frames in a stack
BATCH = 512  # enough to sample each of some 20 steps with near certainty


def definition(capacity, lanes, stack, batch_size=BATCH, **settings):
    return FrameReplayBuffer(spec_of(stack), capacity, lanes, batch_size, **settings)


def newest(buffer, observation):
    return number_of(buffer.newest_frame(observation))


@pytest.mark.parametrize(
    "capacity, lanes, stack, n_step",
    some((1, 2, 5, 6), [(*shape, n_step) for shape in SHAPES for n_step in (1, 3)]),
)
@given(data=st.data())
@settings(max_examples=25)
def test_what_is_sampled_is_what_the_environments_gave(capacity, lanes, stack, n_step, data):
    buffer = definition(capacity, lanes, stack, n_step=n_step)
    played = play(data.draw(histories(lanes)), buffer.spec)
    state = filled(buffer, played)
    want = intact_steps(buffer, played)
    assert int(num_stored(buffer, state)) == len(want)
    if not want:
        return
    batch, _ = sample(buffer, state)
    numbers = newest(buffer, batch.observation)
    assert set(numbers) == set(want)  # all of them, and nothing else
    np.testing.assert_array_equal(batch.action[:, 0], -numbers)
    given = {}
    for number, (slots, place) in want.items():
        reward, discount, steps = summed(slots, place, n_step, 0.9)
        then = slots[place + steps].observation
        given[number] = (slots[place].observation, then, reward, discount)
    seen, then, reward, discount = zip(*(given[number] for number in numbers), strict=True)
    np.testing.assert_array_equal(batch.observation, seen)
    np.testing.assert_array_equal(batch.next_observation, then)
    np.testing.assert_allclose(batch.reward, reward, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(batch.discount, discount, rtol=1e-5)
    np.testing.assert_array_equal(batch.weight, 1.0)
    np.testing.assert_array_equal(batch.row, np.arange(BATCH))


def test_an_episode_by_hand():
    """Frames 1, 2, 3 and the end; 4 is the next episode's first. Stacks of 4 repeat the first."""
    buffer = definition(9, 1, 4, 64)
    batch, _ = sample(buffer, filled(buffer, play(["-", "t", "-"], buffer.spec)))
    pairs = zip(batch.observation[..., 0], batch.next_observation[..., 0], strict=True)
    assert {(tuple(seen), tuple(then)) for seen, then in pairs} == {
        ((1, 1, 1, 1), (1, 1, 1, 2)),
        ((1, 1, 1, 2), (1, 1, 2, 3)),  # the true final frame
        ((4, 4, 4, 4), (4, 4, 4, 5)),  # what has just been seen, though no step followed yet
    }


@pytest.mark.parametrize("moments", [["-"] * 20, ["t"] * 30, ["-t", "tX", "-C"] * 9])
def test_every_step_is_equally_likely(moments):
    """Final frames lie between the steps, with the shortest episodes behind every one."""
    buffer = definition(12, len(moments[0]), 1)
    played = play(moments, buffer.spec)
    state = filled(buffer, played)
    numbers = np.concatenate(
        [newest(buffer, sample(buffer, state, seed)[0].observation) for seed in range(20)]
    )
    found, counts = np.unique(numbers, return_counts=True)
    assert set(found) == set(intact_steps(buffer, played))
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("capacity, lanes, stack", some((0, 2), SHAPES))
@given(data=st.data())
@settings(max_examples=25)
def test_priorities_are_those_of_the_steps_that_can_be_sampled(capacity, lanes, stack, data):
    buffer = definition(capacity, lanes, stack, 64, priority_exponent=1.0)
    played = play(data.draw(histories(lanes)), buffer.spec)
    state = filled(buffer, played)
    want = intact_steps(buffer, played)
    leaves = np.asarray(state.priorities.tree.levels[-1])
    numbers = number_of(np.asarray(state.storage.frame)).reshape(-1)
    assert {*numbers[leaves > 0]} == set(want)
    assert np.count_nonzero(leaves) == len(want)
    if want:
        batch, indices = sample(buffer, state)
        np.testing.assert_array_equal(numbers[indices], newest(buffer, batch.observation))
        chance = leaves[indices] / leaves.sum()
        np.testing.assert_allclose(batch.weight, 1 / (len(want) * chance), rtol=1e-4)


def test_seeds_have_buffers_of_their_own():
    """The second sees ten times the numbers of the first."""
    buffer = definition(9, 2, 4, 8)
    pair = jax.tree.map(lambda x: np.stack([x, x]), empty(buffer))
    chunk = play(["--", "t-", "-t"], buffer.spec).chunk
    append = jax.jit(jax.vmap(buffer.add))
    for moment in range(3):
        row = jax.tree.map(lambda x, at=moment: x[at : at + 1], chunk)
        row = jax.tree.map(lambda x: np.stack([x, x if x.dtype == bool else 10 * x]), row)
        pair = append(pair, row)

    @jax.vmap
    def take(state):
        return buffer.sample(state, jax.random.PRNGKey(0), hyper(1.0))[0]

    batch = jax.device_get(jax.jit(take)(pair))
    np.testing.assert_array_equal(10 * batch.observation[0], batch.observation[1])
    np.testing.assert_array_equal(10 * batch.next_observation[0], batch.next_observation[1])


@example(moments=["C", "C", "-", "C", "X", "t", "C"])
@given(moments=histories(1))
@settings(max_examples=15)
def test_rows_that_are_no_steps_leave_no_trace(moments):
    """Not even in slots that nobody reads."""
    buffer = definition(9, 1, 1)
    state = filled(buffer, play(moments, buffer.spec))
    assert not np.any(np.asarray(state.storage.frame) == -1000)
    assert not np.any(np.asarray(state.storage.reward) == np.float32(9e9))
