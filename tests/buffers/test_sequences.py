"""Sequences out of a frame replay buffer: slices of what happened, with the recurrent state that
was there before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffers.frame_lists import (
    filled,
    histories,
    intact_sequences,
    num_stored,
    number_of,
    play,
    sample,
    some,
    spec_of,
    summed,
)  # fmt: skip
from understudy.buffers import FrameReplayBuffer
from understudy.types import Sequences

# capacity, lanes, frames in a stack, sequences
SHAPES = [
    (14, 1, 1, Sequences(burn_in=2, length=3, stride=2, memory=2)),
    (40, 2, 4, Sequences(burn_in=1, length=4, stride=3, memory=2)),
    (12, 1, 1, Sequences(burn_in=0, length=1, stride=1, memory=2)),
    (1, 1, 4, Sequences(burn_in=3, length=2, stride=5, memory=2)),
]


def definition(capacity, lanes, stack, parts, batch_size, **settings):
    return FrameReplayBuffer(
        spec_of(stack), capacity, lanes, batch_size, sequences=parts, **settings
    )


def begins_with(buffer, history):
    return number_of(buffer.newest_frame(history.observation[:, 0]))


def assert_is_slice(history, then, sequence, slots, place, parts, n_step):
    """Observations, resets, recurrent state and moments of one sequence."""
    known = slots[place : place + history.observation.shape[1]]
    assert history.observation.shape[1] == parts.burn_in + parts.length + n_step
    np.testing.assert_array_equal(
        history.observation[sequence][: len(known)], [slot.observation for slot in known]
    )
    first = [False, *(slot.first for slot in known[1:])]
    np.testing.assert_array_equal(history.first[sequence][: len(known)], first)
    np.testing.assert_array_equal(history.memory[sequence], slots[place].recurrent_state)
    learned = parts.burn_in + np.arange(parts.length)
    np.testing.assert_array_equal(history.at[sequence], learned)
    steps = [summed(slots, place + at, n_step, 1.0)[2] for at in learned]
    np.testing.assert_array_equal(then.at[sequence], learned + steps)
    assert np.all(then.at[sequence] < len(known))
    for field in ("observation", "first", "memory"):
        np.testing.assert_array_equal(
            getattr(then, field)[sequence], getattr(history, field)[sequence]
        )


@pytest.mark.parametrize(
    "capacity, lanes, stack, parts, n_step",
    some((0, 3, 4, 7), [(*shape, n_step) for shape in SHAPES for n_step in (1, 3)]),
)
@given(data=st.data())
@settings(max_examples=25)
def test_sequences_are_slices_of_what_happened(capacity, lanes, stack, parts, n_step, data):
    buffer = definition(capacity, lanes, stack, parts, 128, n_step=n_step)
    played = play(data.draw(histories(lanes)), buffer.spec)
    state = filled(buffer, played)
    want = intact_sequences(buffer, played)
    assert int(num_stored(buffer, state)) == len(want)
    batch, _ = sample(buffer, state)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(batch))
    if not want:
        assert not np.any(batch.weight)
        return
    history, then = batch.observation, batch.next_observation
    assert history.burn_in == then.burn_in == parts.burn_in
    numbers = begins_with(buffer, history)
    assert set(numbers) == set(want)
    given = {}  # of each sequence: its steps' actions, rewards, discounts and weights
    for number, (slots, place) in want.items():
        sequence = int(np.flatnonzero(numbers == number)[0])
        assert_is_slice(history, then, sequence, slots, place, parts, n_step)
        rows = []
        for at in range(place + parts.burn_in, place + parts.burn_in + parts.length):
            slot = slots[at]
            reward, discount, _ = summed(slots, at, n_step, 0.9) if slot.step else (0.0, 0.0, 0)
            rows.append((-slot.number if slot.step else 0.0, reward, discount, slot.step))
        given[number] = (sequence, rows)
    # A sequence that was sampled again is the same again.
    again = np.array([given[number][0] for number in numbers])
    for part in (history, then):
        for field in ("observation", "first", "memory", "at"):
            values = getattr(part, field)
            np.testing.assert_array_equal(values, values[again])
    action, reward, discount, is_step = np.array(
        [row for number in numbers for row in given[number][1]], np.float64
    ).T
    np.testing.assert_array_equal(batch.action[:, 0], action)
    np.testing.assert_allclose(batch.reward, reward, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(batch.discount, discount, rtol=1e-5)
    np.testing.assert_allclose(batch.weight, is_step, rtol=1e-6)
    np.testing.assert_array_equal(batch.row, np.arange(len(is_step)))


@pytest.mark.parametrize("capacity, lanes, stack, parts", some((1, 3), SHAPES))
@given(data=st.data())
@settings(max_examples=25)
def test_priorities_are_those_of_whole_sequences(capacity, lanes, stack, parts, data):
    buffer = definition(capacity, lanes, stack, parts, 64, priority_exponent=1.0)
    played = play(data.draw(histories(lanes)), buffer.spec)
    state = filled(buffer, played)
    want = intact_sequences(buffer, played)
    leaves = np.asarray(state.priorities.tree.levels[-1])
    numbers = number_of(np.asarray(state.storage.frame[:, :: parts.stride])).reshape(-1)
    assert {*numbers[leaves > 0]} == set(want)
    assert np.count_nonzero(leaves) == len(want)
    batch, indices = sample(buffer, state)
    if not want:
        assert not np.any(batch.weight) and np.all(indices >= len(leaves))
        return
    np.testing.assert_array_equal(numbers[indices], begins_with(buffer, batch.observation))
    weight = batch.weight.reshape(64, -1)
    counts = weight > 0
    chance = leaves[indices] / leaves.sum()
    exact = 1 / (len(want) * chance)
    np.testing.assert_allclose(weight, counts * exact[:, None], rtol=1e-4)


@pytest.mark.parametrize("moments", [["---"] * 30, ["-t-", "XTC", "--X"] * 12])
def test_every_sequence_is_equally_likely(moments):
    """Over lanes of different fill."""
    buffer = definition(50, 3, 1, Sequences(2, 3, 2, 2), 512)
    played = play(moments, buffer.spec)
    state = filled(buffer, played)
    begins = [begins_with(buffer, sample(buffer, state, s)[0].observation) for s in range(10)]
    found, counts = np.unique(np.concatenate(begins), return_counts=True)
    assert set(found) == set(intact_sequences(buffer, played))
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_an_episode_by_hand():
    """Two steps and the end, then a new episode: the recurrent state is reset at its first frame,
    and the final frame is asked about but not learned from."""
    parts = Sequences(burn_in=1, length=3, stride=6, memory=2)
    buffer = definition(12, 1, 1, parts, 1)
    batch, indices = sample(buffer, filled(buffer, play(["-", "t", "-", "-"], buffer.spec)))
    history, then = batch.observation, batch.next_observation
    assert history.observation[0, :, 0].tolist() == [1, 2, 3, 4, 5]
    assert history.first[0].tolist() == [False, False, False, True, False]
    assert history.at[0].tolist() == [1, 2, 3] and then.at[0].tolist() == [2, 2, 4]
    assert batch.action[:, 0].tolist() == [-2, 0, -4]
    assert batch.weight.tolist() == [1.0, 0.0, 1.0]
    assert indices.tolist() == [0]


def test_an_error_for_each_sequence():
    error = jnp.array([1.0, -3.0, 9.0, 2.0, 2.0, -4.0])
    weight = jnp.array([0.5, 0.5, 0.0, 2.0, 2.0, 2.0])
    errors = jax.jit(FrameReplayBuffer.errors_by_place, static_argnums=0)
    for mix, want in [(0.0, [2.0, 8 / 3]), (1.0, [3.0, 4.0]), (0.9, [2.9, 3.6 + 0.8 / 3])]:
        got = errors(definition(*SHAPES[0], 2, priority_mix=mix), error, weight)
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert errors(definition(*SHAPES[0], 2), error, jnp.zeros(6)).tolist() == [0.0, 0.0]


def test_a_buffer_too_small_for_its_sequences_is_made_larger():
    parts = Sequences(burn_in=20, length=40, stride=10, memory=2)
    buffer = definition(5, 1, 4, parts, 1)
    slots = jax.eval_shape(buffer.init).storage.reward.shape[1]
    assert slots == buffer.num_slots
    assert slots % 10 == 0 and slots >= 60 + 4 + 10
