"""When things happen, checked against a plain count of what is owed."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.algorithms.off_policy import ReplayNeeds
from understudy.training.update_schedule import UpdateSchedule, next_multiple
from understudy.types import Sequences


def update_schedule(num_envs=1, **changes):
    standard = dict(
        buffer_size=1000, batch_size=4, n_step=1, start_steps=10, max_start_steps=10_000,
        min_buffer_size=6, updates_per_step=1.0, update_every=1,
    )  # fmt: skip
    return UpdateSchedule.of(ReplayNeeds(**(standard | changes)), num_envs)


def test_one_update_per_step_once_the_ring_holds_enough():
    one = update_schedule()
    assert [one.updates_after(i) for i in range(8)] == [0, 0, 0, 0, 0, 1, 1, 1]
    assert [one.random(i) for i in (0, 9, 10, 11)] == [True, True, False, False]


def test_random_steps_and_the_first_update_are_two_different_things():
    early = update_schedule(start_steps=100, min_buffer_size=1)
    assert early.updates_after(0) == 1 and early.random(99) and not early.random(100)
    late = update_schedule(start_steps=0, min_buffer_size=50)
    assert not late.random(0) and late.updates_after(48) == 0 and late.updates_after(49) == 1


def test_the_ratio_is_per_transition_whatever_the_number_of_environments():
    for num_envs in (1, 2, 4, 8):
        many = update_schedule(num_envs, min_buffer_size=8)
        iterations = range(many.first_learning_iteration + 1, 200)
        updates = sum(many.updates_after(i) for i in iterations)
        assert updates == len(iterations) * num_envs


def test_blocks():
    blocks = update_schedule(update_every=50, min_buffer_size=50, updates_per_step=2.0)
    done = [blocks.updates_after(i) for i in range(200)]
    assert [i for i, count in enumerate(done) if count] == [49, 99, 149, 199]
    assert set(done) == {0, 100}


def test_no_burst_for_blocks_that_ended_before_learning_began():
    late = update_schedule(update_every=4, min_buffer_size=100)
    assert sum(late.updates_after(i) for i in range(99)) == 0
    assert late.updates_after(99) == 4


def test_refilling_waits_again_but_owes_nothing():
    one = update_schedule().refilling(1000)
    assert [one.updates_after(i) for i in (1000, 1004, 1005, 1006)] == [0, 0, 1, 1]
    assert not one.random(1000)


def totals(schedule, iterations):
    """Updates in all, after each of the iterations that learn."""
    first = schedule.first_learning_iteration
    return np.cumsum([schedule.updates_after(i) for i in range(first, first + iterations)])


@given(
    ratio=st.sampled_from([0.1, 0.123, 0.25, 0.3, 0.5, 1.0, 1.5, 2.0, 20.0, 3 / 1024]),
    update_every=st.integers(1, 12),
    num_envs=st.integers(1, 9),
    enough=st.integers(1, 40),
)
def test_updates_in_all_are_the_floor_of_the_ratio_times_the_transitions(
    ratio, update_every, num_envs, enough
):
    one = update_schedule(
        num_envs, updates_per_step=ratio, update_every=update_every, min_buffer_size=enough
    )
    done = 0
    for iteration in range(120):
        done += one.updates_after(iteration)
        if not one.learning(iteration):
            assert done == 0
            continue
        transitions = (iteration + 1) * num_envs - one.origin
        released = transitions - transitions % update_every
        assert done == math.floor(Fraction(str(ratio)) * released)
    # Learning began at most a block before enough transitions were stored.
    before = one.first_learning_iteration * num_envs
    assert 0 <= before - one.origin < max(update_every, one.block_iterations * num_envs)


@pytest.mark.parametrize(
    ("num_envs", "ratio", "updates"),
    [
        (2_048, 1 / 2_048, [1, 2, 3, 4, 5]),
        (1_024, 3 / 1_024, [3, 6, 9, 12, 15]),
        (1_536, 0.001, [1, 3, 4, 6, 7]),
        (1, 0.123, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2]),
        (1, 1.5, [1, 3, 4, 6, 7]),
    ],
)
def test_neither_silence_nor_bursts(num_envs, ratio, updates):
    many = update_schedule(num_envs, updates_per_step=ratio, min_buffer_size=1)
    assert totals(many, len(updates)).tolist() == updates


def test_a_thousand_iterations_are_exact():
    """1,536 environments did 54 % too many updates at 1/1,536 when the ratio was rounded."""
    many = update_schedule(1_536, updates_per_step=1 / 1_536, min_buffer_size=1)
    assert totals(many, 1_000)[-1] in (999, 1_000)  # 1/1,536 is no decimal number
    whole = update_schedule(1_536, updates_per_vector_step=1.0, min_buffer_size=1)
    assert totals(whole, 1_000).tolist() == list(range(1, 1_001)) and whole.regular


def test_updates_per_step_of_all_environments():
    three = update_schedule(7, updates_per_vector_step=3.0, min_buffer_size=7)
    assert [three.updates_after(i) for i in range(4)] == [3, 3, 3, 3]
    seldom = update_schedule(7, updates_per_vector_step=0.5, min_buffer_size=7)
    assert [seldom.updates_after(i) for i in range(4)] == [0, 1, 0, 1]


@given(
    ratio=st.sampled_from([0.1, 0.25, 0.5, 1.0, 2.0]),
    update_every=st.integers(1, 12),
    num_envs=st.integers(1, 9),
)
def test_regular_blocks_end_with_all_their_updates(ratio, update_every, num_envs):
    one = update_schedule(
        num_envs, updates_per_step=ratio, update_every=update_every, min_buffer_size=1
    )
    if one.regular:
        block = [0] * (one.block_iterations - 1) + [one.block_updates]
        iterations = range(5 * one.block_iterations)
        assert [one.updates_after(i) for i in iterations] == 5 * block


@given(start=st.integers(0, 60), length=st.integers(1, 40), update_every=st.integers(1, 5))
def test_steady_means_every_block_updates_and_nothing_is_random(start, length, update_every):
    one = update_schedule(update_every=update_every)
    stop = start + length
    if one.steady(start, stop):
        done = [one.updates_after(i) for i in range(start, stop)]
        assert sum(done) == length // one.block_iterations * one.block_updates
        assert not any(one.random(i) for i in range(start, stop))


def test_next_multiple():
    assert [next_multiple(p, 10) for p in (0, 9, 10, 11)] == [10, 10, 20, 20]


@given(num_envs=st.integers(1, 200), enough=st.integers(1, 500), stride=st.integers(1, 20))
def test_learning_waits_for_a_whole_sequence(num_envs, enough, stride):
    """However many environments share the steps that are asked for."""
    parts = Sequences(burn_in=3, length=8, stride=stride, memory=4)
    waiting = update_schedule(num_envs, min_buffer_size=enough, sequences=parts)
    stored = waiting.first_learning_iteration + 1  # steps of each environment
    starts = range(0, stored, stride)
    assert any(start + parts.burn_in + parts.length <= stored for start in starts)
    assert stored * num_envs >= enough


@given(
    ratio=st.sampled_from([0.01, 0.123, 0.25, 1.0, 1.5, 20.0]),
    update_every=st.integers(1, 12),
    num_envs=st.integers(1, 9),
    enough=st.integers(1, 60),
)
def test_the_first_update(ratio, update_every, num_envs, enough):
    one = update_schedule(
        num_envs, updates_per_step=ratio, update_every=update_every, min_buffer_size=enough
    )
    done = [one.updates_after(iteration) for iteration in range(400)]
    assert one.first_update_iteration == next(i for i, count in enumerate(done) if count) + 1


@pytest.mark.parametrize(
    ("training", "given", "most", "enough", "random", "first"),
    [
        (1_000_000, None, 25_000, 25_000, 25_000, 25_000),  # a published setting
        (20_000, None, 25_000, 25_000, 2_000, 2_000),  # it would have learned nothing
        (20_000, None, 10_000, 1_000, 2_000, 1_000),
        (3_000, None, 10_000, 1_000, 300, 300),
        (3, None, 10_000, 1_000, 0, 1),
        (20_000, 25_000, 10_000, 25_000, 25_000, 25_000),  # as asked for
        (0, None, 10_000, 1_000, 10_000, 1_000),  # not known
    ],
)
def test_random_steps_by_default_are_a_tenth_of_the_run(
    training, given, most, enough, random, first
):
    needs = ReplayNeeds(
        buffer_size=10**6, batch_size=4, n_step=1, start_steps=given, max_start_steps=most,
        min_buffer_size=enough, updates_per_step=1.0, update_every=1,
    )  # fmt: skip
    one = UpdateSchedule.of(needs, 1, training)
    assert (one.random_iterations, one.first_update_iteration) == (random, first)


def test_chunks_of_whole_periods():
    def steps(period, most=16, num_envs=1, **settings):
        schedule = update_schedule(num_envs, **settings)
        return schedule.iterations_of_whole_periods(period, most)

    assert [steps(period) for period in (1, 2, 3, 7, 20)] == [16, 16, 15, 14, 16]
    assert steps(3, updates_per_step=2.0) == 15 and steps(20, updates_per_step=20.0) == 16
    assert steps(2, updates_per_step=0.25) == 16 and steps(3, num_envs=3) == 16
    assert steps(10**12) == 16  # resets at single updates: no period
