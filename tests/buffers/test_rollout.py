"""The rollout gives back what happened, in order, and knows where episodes end."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffers.plain_lists import CUT, SPEC, NumberedStep, empty, histories, hyper, one_step
from understudy.buffers import RolloutBuffer

HORIZON = 6

append = jax.jit(RolloutBuffer.add, static_argnums=0)
take = jax.jit(RolloutBuffer.sample, static_argnums=0)


def ends(steps):
    """Of one lane: whether each row is an episode's last step; by a plain loop."""
    last = []
    for place, step in enumerate(steps):
        cut_next = place + 1 < len(steps) and steps[place + 1] is CUT
        last.append(step is CUT or cut_next or (step is not None and step.last))
    return last


@pytest.mark.parametrize("lanes", [1, 3])
@given(data=st.data())
@settings(max_examples=40)
def test_what_comes_out_is_what_a_list_would_hold(lanes, data):
    history = data.draw(histories(lanes, longest=2 * HORIZON))
    buffer = RolloutBuffer(SPEC, HORIZON, lanes)
    state = empty(buffer)
    for steps in history:
        state = append(buffer, state, one_step(steps))
    trajectory, indices = take(buffer, state, jax.random.PRNGKey(0), hyper())
    assert indices is None
    trajectory = jax.tree.map(np.asarray, trajectory)
    kept = history[-HORIZON:]
    for lane in range(lanes):
        mine = [moment[lane] for moment in kept]
        seen = slice(HORIZON - len(mine), None)
        np.testing.assert_array_equal(trajectory.last[seen, lane], ends(mine))
        for place, step in zip(range(HORIZON - len(mine), HORIZON), mine, strict=True):
            assert trajectory.valid[place, lane] == (step not in (None, CUT))
            if step not in (None, CUT):
                assert trajectory.observation[place, lane, 0] == step.number
                assert trajectory.next_observation[place, lane, 0] == step.number + 0.5
                assert trajectory.discount[place, lane] == (0.0 if step.terminated else 0.5)


def test_extras_and_recurrent_states_by_hand():
    """Of five steps the newest three, and the recurrent state before the oldest of them."""
    buffer = RolloutBuffer(SPEC, 3, 2, recurrent_width=1, extras=("log_prob", "value"))
    state = empty(buffer)
    for time in range(5):
        rows = np.array([time, 10 + time], np.float32)
        chunk = one_step([NumberedStep(1), NumberedStep(2)])
        extras = {"log_prob": -rows[None], "value": 2 * rows[None]}
        chunk = chunk._replace(recurrent_state=rows[None, :, None], extras=extras)
        state = append(buffer, state, chunk)
    trajectory, _ = take(buffer, state, jax.random.PRNGKey(0), hyper())
    assert set(trajectory.extras) == {"log_prob", "value"}
    assert trajectory.extras["log_prob"].tolist() == [[-2, -12], [-3, -13], [-4, -14]]
    assert trajectory.extras["value"].tolist() == [[4, 24], [6, 26], [8, 28]]
    assert trajectory.memory.tolist() == [[2], [12]]
