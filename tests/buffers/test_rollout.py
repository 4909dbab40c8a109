"""The rollout gives back what happened, in order, and knows where episodes end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from listed import CUT, SPEC, histories, row

from understudy.buffers import rollout

HORIZON = 6

append = jax.jit(rollout.add)


@jax.jit
def read(store):
    return rollout.trajectory(store, gamma=jnp.float32(0.5), reward_scale=jnp.float32(1.0))


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
    store = rollout.create(SPEC, HORIZON, lanes)
    for steps in history:
        valid = jnp.asarray([step not in (None, CUT) for step in steps])
        store = append(store, row(steps), valid)
    steps = jax.tree.map(np.asarray, read(store))
    kept = history[-HORIZON:]
    for lane in range(lanes):
        mine = [moment[lane] for moment in kept]
        seen = slice(HORIZON - len(mine), None)
        np.testing.assert_array_equal(steps.last[seen, lane], ends(mine))
        for place, step in zip(range(HORIZON - len(mine), HORIZON), mine, strict=True):
            assert steps.valid[place, lane] == (step not in (None, CUT))
            if step not in (None, CUT):
                assert steps.observation[place, lane, 0] == step.number
                assert steps.next_observation[place, lane, 0] == step.number + 0.5
                assert steps.discount[place, lane] == (0.0 if step.terminated else 0.5)
