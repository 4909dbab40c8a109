"""A film gives back every stack, sum and final frame that the environments gave, and no other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from filmed import draw, histories, intact, played, player, some, spec_of, summed
from hypothesis import example, given, settings
from hypothesis import strategies as st

from understudy.buffers import frame_replay as films

SHAPES = [(3, 1, 1), (9, 1, 4), (20, 3, 4), (12, 2, 1)]  # capacity, lanes, frames in a stack
BATCH = 512  # enough to draw each of some 20 steps with near certainty


def drawable(tapes, opened, film):
    """Where each step that can be drawn lies: its number -> (tape, place)."""
    slots = film.storage.reward.shape[1]
    return {
        tape[place].number: (tape, place)
        for tape, is_open in zip(tapes, opened, strict=True)
        for place in intact(tape, is_open, slots, film.frames)
        if tape[place].step
    }


def newest(film, observation):
    frame = observation[:, -1] if film.frames > 1 else observation
    return frame[:, 0].astype(int)


@pytest.mark.parametrize(
    "capacity, lanes, stack, n_step",
    some((1, 2, 5, 6), [(*shape, n_step) for shape in SHAPES for n_step in (1, 3)]),
)
@given(data=st.data())
@settings(max_examples=25)
def test_what_is_sampled_is_what_the_environments_gave(capacity, lanes, stack, n_step, data):
    rows, tapes, opened = played(data.draw(histories(lanes)), stack)
    film = player(capacity, lanes, stack, None)(rows)
    want = drawable(tapes, opened, film)
    assert int(films.num_stored(film)) == len(want)
    if not want:
        return
    batch, _ = draw(film, BATCH, n_step=n_step)
    numbers = newest(film, batch.observation)
    assert set(numbers) == set(want)  # all of them, and nothing else
    np.testing.assert_array_equal(batch.action[:, 0], -numbers)
    given = {}
    for number, (tape, place) in want.items():
        reward, discount, steps = summed(tape, place, n_step, 0.9)
        then = tape[place + steps].observation
        given[number] = (tape[place].observation, then, reward, discount)
    seen, then, reward, discount = zip(*(given[number] for number in numbers), strict=True)
    np.testing.assert_array_equal(batch.observation, seen)
    np.testing.assert_array_equal(batch.next_observation, then)
    np.testing.assert_allclose(batch.reward, reward, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(batch.discount, discount, rtol=1e-5)
    np.testing.assert_array_equal(batch.weight, 1.0)
    np.testing.assert_array_equal(batch.row, np.arange(BATCH))


def test_an_episode_by_hand():
    """Frames 1, 2, 3 and the end; 4 is the next episode's first. Stacks of 4 repeat the first."""
    rows, _, _ = played(["-", "t", "-"], 4)
    batch, _ = draw(player(9, 1, 4, None)(rows), 64)
    pairs = zip(batch.observation[..., 0], batch.next_observation[..., 0], strict=True)
    assert {(tuple(seen), tuple(then)) for seen, then in pairs} == {
        ((1, 1, 1, 1), (1, 1, 1, 2)),
        ((1, 1, 1, 2), (1, 1, 2, 3)),  # the true final frame
        ((4, 4, 4, 4), (4, 4, 4, 5)),  # what has just been seen, though no step followed yet
    }


@pytest.mark.parametrize("moments", [["-"] * 20, ["t"] * 30, ["-t", "tX", "-C"] * 9])
def test_every_step_is_equally_likely(moments):
    """Final frames lie between the steps, with the shortest episodes behind every one."""
    rows, tapes, opened = played(moments, 1)
    film = player(12, len(moments[0]), 1, None)(rows)
    numbers = np.concatenate(
        [newest(film, draw(film, BATCH, seed=seed)[0].observation) for seed in range(20)]
    )
    found, counts = np.unique(numbers, return_counts=True)
    assert set(found) == set(drawable(tapes, opened, film))
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("capacity, lanes, stack", some((0, 2), SHAPES))
@given(data=st.data())
@settings(max_examples=25)
def test_priorities_are_those_of_the_steps_that_can_be_drawn(capacity, lanes, stack, data):
    rows, tapes, opened = played(data.draw(histories(lanes)), stack)
    film = player(capacity, lanes, stack, None, revising=True)(rows)
    want = drawable(tapes, opened, film)
    leaves = np.asarray(film.priorities.tree.levels[-1])
    frame = np.asarray(film.storage.frame[..., 0]).reshape(-1)
    assert {*frame[leaves > 0].astype(int)} == set(want)
    assert np.count_nonzero(leaves) == len(want)
    if want:
        batch, place = draw(film, 64)
        np.testing.assert_array_equal(frame[place], newest(film, batch.observation))
        chance = leaves[place] / leaves.sum()
        np.testing.assert_allclose(batch.weight, 1 / (len(want) * chance), rtol=1e-4)


def test_members_have_films_of_their_own():
    """The second sees ten times the numbers of the first."""
    film = jax.jit(lambda: films.create(spec_of(4), 9, 2))()
    pair = jax.tree.map(lambda x: jnp.asarray(np.stack([x, x])), film)
    (rows, valid, _), _, _ = played(["--", "t-", "-t"], 4)
    append, one = jax.jit(jax.vmap(films.add)), jnp.float32(1.0)
    for moment in range(3):
        row = jax.tree.map(lambda x, at=moment: x[at], rows)
        row = jax.tree.map(lambda x: np.stack([x, x if x.dtype == bool else 10 * x]), row)
        pair = append(pair, jax.tree.map(jnp.asarray, row), jnp.asarray([valid[moment]] * 2))

    @jax.vmap
    def take(film):
        key = jax.random.PRNGKey(0)
        return films.sample(film, key, 8, gamma=one, reward_scale=one)[0]

    batch = jax.device_get(jax.jit(take)(pair))
    np.testing.assert_array_equal(10 * batch.observation[0], batch.observation[1])
    np.testing.assert_array_equal(10 * batch.next_observation[0], batch.next_observation[1])


@example(moments=["C", "C", "-", "C", "X", "t", "C"])
@given(moments=histories(1))
@settings(max_examples=15)
def test_rows_that_are_no_steps_leave_no_trace(moments):
    """Not even in slots that nobody reads."""
    film = player(9, 1, 1, None)(played(moments, 1)[0])
    assert not np.any(np.asarray(film.storage.frame) == -1000)
    assert not np.any(np.asarray(film.storage.reward) == np.float32(9e9))
