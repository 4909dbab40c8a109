"""n-step sums through `sample`: never across an episode, nor from the newest to the oldest."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffers.plain_lists import CUT, ListedReplay, NumberedStep, histories


@pytest.mark.parametrize("n_step", [2, 3, 7])
@pytest.mark.parametrize("capacity, lanes", [(5, 1), (10, 3)])
@given(data=st.data())
@settings(max_examples=25)
def test_sums_are_those_of_the_list(capacity, lanes, n_step, data):
    listed = ListedReplay(capacity, lanes)
    for steps in data.draw(histories(lanes)):
        listed.add(steps)
    if not listed.stored():
        return
    batch = listed.sample(gamma=0.9, n_step=n_step)
    assert set(batch.observation) == set(listed.stored())
    want = {number: listed.summed(number, n_step, 0.9) for number in listed.stored()}
    want = np.array([want[int(number)] for number in batch.observation])
    np.testing.assert_allclose(batch.reward, want[:, 0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(batch.discount, want[:, 1], rtol=1e-5)
    np.testing.assert_array_equal(batch.next_observation, want[:, 2])


def sampled(steps, n_step, gamma=0.5, capacity=8):
    """What each step of one lane gives: number -> (reward, discount, next observation)."""
    listed = ListedReplay(capacity, 1)
    for step in steps:
        listed.add([step])
    batch = listed.sample(gamma=gamma, n_step=n_step)
    rows = zip(batch.observation, batch.reward, batch.discount, batch.next_observation, strict=True)
    return {int(number): (float(r), float(d), float(o)) for number, r, d, o in rows}


def test_terminated_by_hand():
    """Rewards 1, 2, 4 and the task ends: nothing behind it counts, nothing is bootstrapped."""
    steps = [
        NumberedStep(1, 1.0),
        NumberedStep(2, 2.0),
        NumberedStep(3, 4.0, True, True),
        NumberedStep(4, 100.0),
        NumberedStep(5, 100.0),
        NumberedStep(6, 100.0),
    ]
    got = sampled(steps, 3)
    assert got[1] == (1 + 1 + 1, 0.0, 3.5)
    assert got[2] == (2 + 2, 0.0, 3.5)
    assert got[3] == (4.0, 0.0, 3.5)
    assert got[4] == (175.0, 0.125, 6.5)


def test_truncated_by_hand():
    """The same, cut short: the true final observation is bootstrapped with γ^m of m steps."""
    steps = [
        NumberedStep(1, 1.0),
        NumberedStep(2, 2.0),
        NumberedStep(3, 4.0, False, True),
        NumberedStep(4, 100.0),
    ]
    got = sampled(steps, 3)
    assert got[1] == (3.0, 0.125, 3.5)
    assert got[2] == (4.0, 0.25, 3.5)
    assert got[3] == (4.0, 0.5, 3.5)
    assert got[4] == (100.0, 0.5, 4.5)  # the newest: its successors have not happened yet


def test_done_on_the_first_step_by_hand():
    steps = [
        NumberedStep(1, 1.0, True, True),
        NumberedStep(2, 2.0, False, True),
        NumberedStep(3, 4.0, True, True),
        NumberedStep(4, 8.0),
        NumberedStep(5, 16.0, True, True),
    ]
    got = sampled(steps, 2)
    assert got == {
        1: (1.0, 0.0, 1.5),
        2: (2.0, 0.5, 2.5),
        3: (4.0, 0.0, 3.5),
        4: (16.0, 0.0, 5.5),
        5: (16.0, 0.0, 5.5),
    }


@pytest.mark.parametrize("n_step", [1, 3])
def test_terminated_and_truncated_at_once_is_terminated(n_step):
    """A time limit reached in the very step that ends the task bootstraps nothing."""
    got = sampled([NumberedStep(1, 1.0, True, True), NumberedStep(2, 2.0)], n_step)
    assert got[1] == (1.0, 0.0, 1.5)


def test_sums_do_not_go_on_from_the_newest_step_to_the_oldest():
    """After wrap-around the newest step lies beside the oldest in memory, but not in time."""
    got = sampled([NumberedStep(n, float(n)) for n in range(1, 8)], 3, capacity=4)
    assert got == {
        4: (4 + 2.5 + 1.5, 0.125, 6.5),
        5: (5 + 3 + 1.75, 0.125, 7.5),
        6: (6 + 3.5, 0.25, 7.5),
        7: (7.0, 0.5, 7.5),
    }


def test_a_window_longer_than_the_buffer():
    got = sampled([NumberedStep(n, 1.0) for n in range(1, 6)], 7, capacity=3)
    assert got == {3: (1.75, 0.125, 5.5), 4: (1.5, 0.25, 5.5), 5: (1.0, 0.5, 5.5)}


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_cut_is_a_truncation_of_the_step_before(n_step):
    """The environment fell over after step 2: its own next observation is bootstrapped."""
    steps = [NumberedStep(1, 1.0), NumberedStep(2, 2.0), CUT]
    steps += [None, NumberedStep(3, 4.0), CUT, CUT, NumberedStep(4, 8.0)]
    got = sampled(steps, n_step)
    assert set(got) == {1, 2, 3, 4}
    assert got[1] == ((1.0, 0.5, 1.5) if n_step == 1 else (2.0, 0.25, 2.5))
    assert got[2] == (2.0, 0.5, 2.5)
    assert got[3] == (4.0, 0.5, 3.5)
    assert got[4] == (8.0, 0.5, 4.5)


def test_a_cut_before_anything_happened_is_nothing():
    got = sampled([CUT, *(NumberedStep(n, 1.0) for n in range(1, 9))], 2, capacity=8)
    assert got[8] == (1.0, 0.5, 8.5)
    assert all(got[n] == (1.5, 0.25, n + 1.5) for n in range(1, 8))
