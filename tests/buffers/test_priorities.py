"""Prioritized replay: what is sampled, how often, and with which weight."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffers.plain_lists import SPEC, NumberedStep, append, empty, hyper, one_step, take
from understudy.buffers import ReplayBuffer, sum_tree

KEY = jax.random.PRNGKey(0)
read = jax.jit(sum_tree.read)
give = jax.jit(ReplayBuffer.update_priorities, static_argnums=0)


def definition(capacity=6, lanes=1, exponent=1.0):
    return ReplayBuffer(SPEC, capacity, lanes, priority_exponent=exponent)


def add_one(buffer, state, *numbers, valid=True):
    """One step of every lane."""
    return append(buffer, state, one_step([NumberedStep(n) if valid else None for n in numbers]))


def filled(steps, buffer=None):
    buffer = buffer or definition()
    state, lanes = empty(buffer), buffer.lanes
    for step in range(steps):
        state = add_one(buffer, state, *range(step * lanes, (step + 1) * lanes))
    return state


def sampled(state, buffer=None, *, size=4096, exponent=1.0):
    """Numbers, weights and indices of a batch."""
    buffer = replace(buffer or definition(), batch_size=size)
    batch, indices = take(buffer, state, KEY, hyper(1.0, importance_exponent=exponent))
    return np.asarray(batch.observation)[:, 0], np.asarray(batch.weight), np.asarray(indices)


def leaves(state):
    lanes, slots = state.storage.reward.shape
    indices = jnp.asarray(np.arange(lanes * slots), jnp.int32)
    return np.asarray(read(state.priorities.tree, indices)).reshape(lanes, slots)


def updated(state, indices, errors, buffer=None, accepted=True):
    buffer = buffer or definition()
    indices, errors = np.asarray(indices, np.int32), np.asarray(errors, np.float32)
    weight = np.ones(len(errors), np.float32)
    priorities = give(buffer, state, indices, errors, weight, np.bool_(accepted))
    return buffer.with_priorities(state, priorities)


def test_new_steps_are_all_alike_and_the_free_slot_is_never_sampled():
    for steps in (1, 4, 6, 7, 15):
        state = filled(steps)
        numbers, weight, _ = sampled(state)
        kept = min(steps, 6)
        assert set(numbers) == set(range(steps - kept, steps))
        np.testing.assert_allclose(weight, 1.0, rtol=1e-5)
        assert leaves(state)[0, int(state.cursor[0])] == 0.0
        assert np.count_nonzero(leaves(state)) == kept


def test_steps_are_sampled_in_proportion_to_their_error():
    state = updated(filled(4), [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0])
    numbers, weight, indices = sampled(state, size=20_000)
    share = np.bincount(numbers.astype(int), minlength=4) / len(numbers)
    np.testing.assert_allclose(share, [0.1, 0.2, 0.3, 0.4], atol=2e-3)
    np.testing.assert_array_equal(indices, numbers)
    # (N · P)^-1 with N = 4
    np.testing.assert_allclose(weight, 1 / (4 * (1 + numbers) / 10), rtol=1e-4)
    half = sampled(state, exponent=0.5)
    np.testing.assert_allclose(half[1], (4 * (1 + half[0]) / 10) ** -0.5, rtol=1e-4)


def test_the_exponent_tempers_the_errors():
    state = updated(filled(2), [0, 1], [1.0, 16.0], definition(exponent=0.5))
    np.testing.assert_allclose(leaves(state)[0, :2], [1.0, 4.0], rtol=1e-4)
    flat = updated(filled(2), [0, 1], [1.0, 16.0], definition(exponent=0.0))
    np.testing.assert_allclose(leaves(flat)[0, :2], 1.0, rtol=1e-4)


def test_a_new_step_gets_the_largest_priority_ever_given():
    state = updated(filled(3), [0, 1, 2], [0.1, 5.0, 0.2])
    state = updated(state, [1], [0.3])  # the step itself may fall again; the largest stays
    state = add_one(definition(), state, 3)
    np.testing.assert_allclose(leaves(state)[0, :4], [0.1, 0.3, 0.2, 5.0], rtol=1e-4)


def test_an_overwritten_step_leaves_no_priority_behind():
    state = updated(filled(6), range(6), [9.0] * 6)
    for number in range(6, 9):
        state = add_one(definition(), state, number)
    numbers, _, _ = sampled(state)
    assert set(numbers) == set(range(3, 9))


def test_a_row_that_is_no_step_is_not_sampled():
    state = filled(3)
    for _ in range(3):
        state = add_one(definition(), state, 9, valid=False)
    numbers, _, _ = sampled(state)
    assert set(numbers) == {0, 1, 2}


def test_an_update_that_was_not_accepted_changes_no_priority():
    state = filled(3)
    spoiled = updated(state, [0, 1], [np.nan, 7.0], accepted=False)
    np.testing.assert_array_equal(leaves(spoiled), leaves(state))
    assert spoiled.priorities.largest == state.priorities.largest


def test_nothing_is_lost_for_good():
    """A step without any error keeps a chance."""
    state = updated(filled(2), [0, 1], [0.0, 0.0])
    assert (leaves(state)[0, :2] > 0).all()


@settings(max_examples=30)
@given(
    shape=st.sampled_from([(1, 2), (1, 9), (2, 5), (3, 6), (3, 7)]),  # few: each has its programs
    program=st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.floats(0.1, 9.0)), max_size=40),
)
def test_the_leaves_are_those_of_a_list(shape, program):
    """Adds, masked adds and updates in any order, against a dict of step → priority."""
    lanes, capacity = shape
    buffer = definition(capacity, lanes)
    state = empty(buffer)
    per_lane = -(-capacity // lanes)
    model = [[] for _ in range(lanes)]  # [number, priority] oldest first
    largest, number = 1.0, 0
    for valid, pick, error in program:
        state = add_one(buffer, state, *range(number, number + lanes), valid=valid)
        if valid:
            for lane in range(lanes):
                model[lane] = (model[lane] + [[number + lane, largest]])[-per_lane:]
            number += lanes
        if any(model):
            numbers, _, indices = sampled(state, buffer, size=8)
            chosen = pick % 8
            state = updated(state, [indices[chosen]], [error], buffer)
            for lane in model:
                for entry in lane:
                    if entry[0] == numbers[chosen]:
                        entry[1] = error
            largest = max(largest, error)
    cursor, stored = np.asarray(state.cursor), np.asarray(state.stored)
    slots = buffer.num_slots
    for lane in range(lanes):
        places = (cursor[lane] - stored[lane] + np.arange(stored[lane])) % slots
        want = [priority for _, priority in model[lane]]
        np.testing.assert_allclose(leaves(state)[lane, places], want, rtol=1e-4)
        assert np.count_nonzero(leaves(state)[lane]) == stored[lane]


@pytest.mark.parametrize("n_step", [1, 3])
def test_n_step_windows_are_those_of_uniform_sampling(n_step):
    """The oldest, the newest and the wrapped: where the window ends does not depend on how a
    step was sampled."""
    prioritized = replace(definition(), batch_size=512, n_step=n_step)
    uniform = replace(prioritized, priority_exponent=None)
    state, ends = filled(9), []
    for buffer, own in [(prioritized, state), (uniform, state._replace(priorities=None))]:
        batch, _ = take(buffer, own, KEY, hyper(1.0))
        pairs = np.concatenate([batch.observation, batch.next_observation], axis=1)
        ends.append(dict(pairs.tolist()))
    assert ends[0] == ends[1]
    assert ends[0][8.0] == 8.5 and ends[0][3.0] == 3.5 + (n_step - 1)
