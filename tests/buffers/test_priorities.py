"""Prioritised replay: what is drawn, how often, and with which weight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from listed import SPEC, Step, row

from understudy.buffers import sum_tree
from understudy.buffers.replay import add, create, revise, sample

KEY = jax.random.PRNGKey(0)
append = jax.jit(add)
begin = jax.jit(create, static_argnums=(0, 1, 2), static_argnames="prioritised")
draw = jax.jit(sample, static_argnames=("batch_size", "n_step"))
look = jax.jit(sum_tree.read)
give = jax.jit(revise, static_argnums=3)


def filled(steps, capacity=6, lanes=1):
    ring = begin(SPEC, capacity, lanes, prioritised=True)
    for number in range(steps):
        step = row([Step(number * lanes + lane, 0.0, False, False) for lane in range(lanes)])
        ring = append(ring, step, jnp.ones(lanes, bool))
    return ring


def drawn(ring, size=4096, exponent=1.0, n_step=1):
    one = jnp.float32(1.0)
    batch, place = draw(
        ring, KEY, batch_size=size, gamma=one, reward_scale=one, n_step=n_step,
        importance_exponent=jnp.float32(exponent),
    )  # fmt: skip
    return np.asarray(batch.observation)[:, 0], np.asarray(batch.weight), np.asarray(place)


def leaves(ring):
    lanes, slots = ring.storage.reward.shape
    tree, places = ring.priorities.tree, jnp.asarray(np.arange(lanes * slots), jnp.int32)
    return np.asarray(look(tree, places)).reshape(lanes, slots)


def revised(ring, place, error, exponent=1.0, good=True):
    places, errors = jnp.asarray(place, jnp.int32), jnp.asarray(error, jnp.float32)
    priorities = give(ring.priorities, places, errors, exponent, jnp.bool_(good))
    return ring._replace(priorities=priorities)


def test_new_steps_are_all_alike_and_the_free_slot_is_never_drawn():
    for steps in (1, 4, 6, 7, 15):
        ring = filled(steps)
        numbers, weight, _ = drawn(ring)
        kept = min(steps, 6)
        assert set(numbers) == set(range(steps - kept, steps))
        np.testing.assert_allclose(weight, 1.0, rtol=1e-5)
        assert leaves(ring)[0, int(ring.cursor[0])] == 0.0
        assert np.count_nonzero(leaves(ring)) == kept


def test_steps_are_drawn_in_proportion_to_their_error():
    ring = revised(filled(4), [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0])
    numbers, weight, place = drawn(ring, size=20_000)
    share = np.bincount(numbers.astype(int), minlength=4) / len(numbers)
    np.testing.assert_allclose(share, [0.1, 0.2, 0.3, 0.4], atol=2e-3)
    np.testing.assert_array_equal(place, numbers)
    # (N · P)^-1 with N = 4
    np.testing.assert_allclose(weight, 1 / (4 * (1 + numbers) / 10), rtol=1e-4)
    half = drawn(ring, exponent=0.5)
    np.testing.assert_allclose(half[1], (4 * (1 + half[0]) / 10) ** -0.5, rtol=1e-4)


def test_the_exponent_tempers_the_errors():
    ring = revised(filled(2), [0, 1], [1.0, 16.0], exponent=0.5)
    np.testing.assert_allclose(leaves(ring)[0, :2], [1.0, 4.0], rtol=1e-4)
    flat = revised(filled(2), [0, 1], [1.0, 16.0], exponent=0.0)
    np.testing.assert_allclose(leaves(flat)[0, :2], 1.0, rtol=1e-4)


def test_a_new_step_gets_the_largest_priority_ever_given():
    ring = revised(filled(3), [0, 1, 2], [0.1, 5.0, 0.2])
    ring = revised(ring, [1], [0.3])  # the step itself may fall again; the largest stays
    ring = append(ring, row([Step(3, 0.0, False, False)]), jnp.ones(1, bool))
    np.testing.assert_allclose(leaves(ring)[0, :4], [0.1, 0.3, 0.2, 5.0], rtol=1e-4)


def test_an_overwritten_step_leaves_no_priority_behind():
    ring = revised(filled(6), range(6), [9.0] * 6)
    for number in range(6, 9):
        ring = append(ring, row([Step(number, 0.0, False, False)]), jnp.ones(1, bool))
    numbers, _, _ = drawn(ring)
    assert set(numbers) == set(range(3, 9))


def test_a_row_that_is_no_transition_is_not_drawn():
    ring = filled(3)
    for _ in range(3):
        ring = append(ring, row([None]), jnp.zeros(1, bool))
    numbers, _, _ = drawn(ring)
    assert set(numbers) == {0, 1, 2}


def test_an_update_that_was_discarded_changes_no_priority():
    ring = filled(3)
    spoiled = revised(ring, [0, 1], [np.nan, 7.0], good=False)
    np.testing.assert_array_equal(leaves(spoiled), leaves(ring))
    assert spoiled.priorities.largest == ring.priorities.largest


def test_nothing_is_lost_for_good():
    """A step without any error keeps a chance."""
    ring = revised(filled(2), [0, 1], [0.0, 0.0])
    assert (leaves(ring)[0, :2] > 0).all()


@settings(max_examples=30)
@given(
    shape=st.sampled_from([(1, 2), (1, 9), (2, 5), (3, 6), (3, 7)]),  # few: each has its programs
    program=st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.floats(0.1, 9.0)), max_size=40),
)
def test_the_leaves_are_those_of_a_list(shape, program):
    """Adds, masked adds and revisions in any order, against a dict of step → priority."""
    lanes, capacity = shape
    ring = begin(SPEC, capacity, lanes, prioritised=True)
    per_lane = -(-capacity // lanes)
    model = [[] for _ in range(lanes)]  # [number, priority] oldest first
    largest, number = 1.0, 0
    for valid, pick, error in program:
        steps = [Step(number + lane, 0.0, False, False) for lane in range(lanes)]
        ring = append(ring, row(steps), jnp.asarray(np.full(lanes, valid)))
        if valid:
            for lane in range(lanes):
                model[lane] = (model[lane] + [[number + lane, largest]])[-per_lane:]
            number += lanes
        if any(model):
            numbers, _, place = drawn(ring, size=8)
            chosen = pick % 8
            ring = revised(ring, [place[chosen]], [error])
            for lane in model:
                for entry in lane:
                    if entry[0] == numbers[chosen]:
                        entry[1] = error
            largest = max(largest, error)
    cursor, stored = np.asarray(ring.cursor), np.asarray(ring.stored)
    slots = ring.storage.reward.shape[1]
    for lane in range(lanes):
        places = (cursor[lane] - stored[lane] + np.arange(stored[lane])) % slots
        want = [priority for _, priority in model[lane]]
        np.testing.assert_allclose(leaves(ring)[lane, places], want, rtol=1e-4)
        assert np.count_nonzero(leaves(ring)[lane]) == stored[lane]


@pytest.mark.parametrize("n_step", [1, 3])
def test_n_step_windows_are_those_of_uniform_sampling(n_step):
    """The oldest, the newest and the wrapped: where the window ends does not depend on how a
    step was drawn."""
    prioritised = filled(9)
    uniform = prioritised._replace(priorities=None)
    one = jnp.float32(1.0)
    ends = []
    for ring in (prioritised, uniform):
        batch, _ = draw(ring, KEY, batch_size=512, gamma=one, reward_scale=one, n_step=n_step)
        pairs = np.concatenate([batch.observation, batch.next_observation], axis=1)
        ends.append(dict(pairs.tolist()))
    assert ends[0] == ends[1]
    assert ends[0][8.0] == 8.5 and ends[0][3.0] == 3.5 + (n_step - 1)
