"""Sequences out of a film: slices of what happened, with the memory that was there before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from filmed import draw, histories, intact, played, player, some, spec_of, summed
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.buffers import frame_replay as films
from understudy.types import Sequences

# capacity, lanes, frames in a stack, sequences
SHAPES = [
    (14, 1, 1, Sequences(burn_in=2, length=3, stride=2, memory=2)),
    (40, 2, 4, Sequences(burn_in=1, length=4, stride=3, memory=2)),
    (12, 1, 1, Sequences(burn_in=0, length=1, stride=1, memory=2)),
    (1, 1, 4, Sequences(burn_in=3, length=2, stride=5, memory=2)),
]


def starts(tapes, opened, film):
    """Where each sequence that can be drawn begins: the number of its first frame -> (tape,
    place). It needs all that it is learned from and what was seen next."""
    slots, parts = film.storage.reward.shape[1], film.sequences
    whole = parts.burn_in + parts.length
    return {
        tape[place].number: (tape, place)
        for tape, is_open in zip(tapes, opened, strict=True)
        for place in intact(tape, is_open, slots, film.frames)
        if place % parts.stride == 0 and place + whole < len(tape)
    }


def begins_with(film, history):
    frame = history.observation[:, 0, -1] if film.frames > 1 else history.observation[:, 0]
    return frame[:, 0].astype(int)


def assert_is_slice(history, then, sequence, tape, place, parts, n_step):
    """Observations, resets, memory and moments of one sequence."""
    known = tape[place : place + history.observation.shape[1]]
    assert history.observation.shape[1] == parts.burn_in + parts.length + n_step
    np.testing.assert_array_equal(
        history.observation[sequence][: len(known)], [seen.observation for seen in known]
    )
    first = [False, *(seen.first for seen in known[1:])]
    np.testing.assert_array_equal(history.first[sequence][: len(known)], first)
    np.testing.assert_array_equal(history.memory[sequence], tape[place].memory)
    learned = parts.burn_in + np.arange(parts.length)
    np.testing.assert_array_equal(history.at[sequence], learned)
    steps = [summed(tape, place + at, n_step, 1.0)[2] for at in learned]
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
    rows, tapes, opened = played(data.draw(histories(lanes)), stack)
    film = player(capacity, lanes, stack, parts)(rows)
    want = starts(tapes, opened, film)
    assert int(films.num_stored(film)) == len(want)
    batch, _ = draw(film, 128, n_step=n_step)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(batch))
    if not want:
        assert not np.any(batch.weight)
        return
    history, then = batch.observation, batch.next_observation
    assert history.burn_in == then.burn_in == parts.burn_in
    numbers = begins_with(film, history)
    assert set(numbers) == set(want)
    given = {}  # of each sequence: its steps' actions, rewards, discounts and weights
    for number, (tape, place) in want.items():
        sequence = int(np.flatnonzero(numbers == number)[0])
        assert_is_slice(history, then, sequence, tape, place, parts, n_step)
        rows = []
        for at in range(place + parts.burn_in, place + parts.burn_in + parts.length):
            seen = tape[at]
            reward, discount, _ = summed(tape, at, n_step, 0.9) if seen.step else (0.0, 0.0, 0)
            rows.append((-seen.number if seen.step else 0.0, reward, discount, seen.step))
        given[number] = (sequence, rows)
    # A sequence that was drawn again is the same again.
    again = np.array([given[number][0] for number in numbers])
    for part in (history, then):
        for field in ("observation", "first", "memory", "at"):
            drawn = getattr(part, field)
            np.testing.assert_array_equal(drawn, drawn[again])
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
    rows, tapes, opened = played(data.draw(histories(lanes)), stack)
    film = player(capacity, lanes, stack, parts, revising=True)(rows)
    want = starts(tapes, opened, film)
    leaves = np.asarray(film.priorities.tree.levels[-1])
    frame = np.asarray(film.storage.frame[:, :: parts.stride, 0]).reshape(-1)
    assert {*frame[leaves > 0].astype(int)} == set(want)
    assert np.count_nonzero(leaves) == len(want)
    batch, place = draw(film, 64)
    if not want:
        assert not np.any(batch.weight) and np.all(place >= len(leaves))
        return
    np.testing.assert_array_equal(frame[place], begins_with(film, batch.observation))
    weight = batch.weight.reshape(64, -1)
    counts = weight > 0
    chance = leaves[place] / leaves.sum()
    exact = 1 / (len(want) * chance)
    np.testing.assert_allclose(weight, counts * exact[:, None], rtol=1e-4)


@pytest.mark.parametrize("moments", [["---"] * 30, ["-t-", "XTC", "--X"] * 12])
def test_every_sequence_is_equally_likely(moments):
    """Over lanes of different fill."""
    rows, tapes, opened = played(moments, 1)
    film = player(50, 3, 1, Sequences(2, 3, 2, 2))(rows)
    drawn = [begins_with(film, draw(film, 512, seed=s)[0].observation) for s in range(10)]
    found, counts = np.unique(np.concatenate(drawn), return_counts=True)
    assert set(found) == set(starts(tapes, opened, film))
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_an_episode_by_hand():
    """Two steps and the end, then a new episode: the memory is forgotten at its first frame, and
    the final frame is asked about but not learned from."""
    parts = Sequences(burn_in=1, length=3, stride=6, memory=2)
    rows, _, _ = played(["-", "t", "-", "-"], 1)
    batch, place = draw(player(12, 1, 1, parts)(rows), 1)
    history, then = batch.observation, batch.next_observation
    assert history.observation[0, :, 0].tolist() == [1, 2, 3, 4, 5]
    assert history.first[0].tolist() == [False, False, False, True, False]
    assert history.at[0].tolist() == [1, 2, 3] and then.at[0].tolist() == [2, 2, 4]
    assert batch.action[:, 0].tolist() == [-2, 0, -4]
    assert batch.weight.tolist() == [1.0, 0.0, 1.0]
    assert place.tolist() == [0]


def test_an_error_for_each_sequence():
    error = jnp.array([1.0, -3.0, 9.0, 2.0, 2.0, -4.0])
    weight = jnp.array([0.5, 0.5, 0.0, 2.0, 2.0, 2.0])
    errors = jax.jit(films.sequence_errors, static_argnums=(2, 3))
    for mix, want in [(0.0, [2.0, 8 / 3]), (1.0, [3.0, 4.0]), (0.9, [2.9, 3.6 + 0.8 / 3])]:
        got = errors(error, weight, 2, mix)
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert errors(error, jnp.zeros(6), 2, 0.9).tolist() == [0.0, 0.0]


def test_a_film_too_small_for_its_sequences_is_made_larger():
    parts = Sequences(burn_in=20, length=40, stride=10, memory=2)
    film = jax.eval_shape(lambda: films.create(spec_of(4), 5, 1, sequences=parts))
    slots = film.storage.reward.shape[1]
    assert slots % 10 == 0 and slots >= 60 + 4 + 10
