"""Steps that come from afar end up where steps from here would."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.buffers import frame_replay as film
from understudy.buffers import replay as ring
from understudy.training.fragments import add_all
from understudy.types import ArraySpec, Continuous, Sequences, Spec, Transition

SPEC = Spec(ArraySpec((2,)), Continuous((-1.0,), (1.0,), shape=(1,)))
LANES, ENVS, TIME = 4, 2, 5
ADD_ALL, ADD_TO_RING, ADD_TO_FILM = jax.jit(add_all), jax.jit(ring.add), jax.jit(film.add)


def made_up(seed: int) -> tuple[Transition, np.ndarray]:
    """Steps of all lanes, [time, lanes, ...], and which of them are any."""
    rng = np.random.default_rng(seed)
    seen = rng.normal(size=(TIME + 1, LANES, 2)).astype(np.float32)
    terminated = rng.random((TIME, LANES)) < 0.2
    steps = Transition(
        observation=seen[:-1],
        action=rng.normal(size=(TIME, LANES, 1)).astype(np.float32),
        reward=rng.normal(size=(TIME, LANES)).astype(np.float32),
        terminated=terminated,
        last=terminated | (rng.random((TIME, LANES)) < 0.1),
        next_observation=seen[1:],
    )
    return steps, rng.random((TIME, LANES)) < 0.9


@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize("container", ["ring", "film", "sequences"])
def test_lane_by_lane_is_the_same_as_all_at_once(container, prioritised):
    memory, sequences = None, None
    if container == "sequences":
        sequences = Sequences(burn_in=1, length=2, stride=2, memory=3)
        memory = np.ones((TIME, LANES, 3), np.float32)
    if container == "ring":
        empty, add = ring.create(SPEC, 24, LANES, prioritised), ADD_TO_RING
    else:
        empty, add = film.create(SPEC, 24, LANES, prioritised, sequences), ADD_TO_FILM
    fragments = whole = empty
    for seed in range(3):  # more than fits
        steps, valid = made_up(seed)
        for lane in (2, 0):
            rows = slice(lane, lane + ENVS)
            mine = jax.tree.map(lambda x, rows=rows: x[:, rows], (steps, valid, memory))
            fragments = ADD_ALL(fragments, *mine, jnp.int32(lane))
        for time in range(TIME):
            now = jax.tree.map(lambda x, time=time: x[time], (steps, valid, memory))
            whole = add(whole, *(now if container != "ring" else now[:2]))
    assert_equal_but_under_the_cursor(fragments, whole)


def assert_equal_but_under_the_cursor(one, other):
    for name in ("cursor", "stored"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    lanes, slots = one.storage.reward.shape
    kept = np.ones((lanes, slots), bool)
    kept[np.arange(lanes), one.cursor] = False
    for a, b in zip(jax.tree.leaves(one.storage), jax.tree.leaves(other.storage), strict=True):
        np.testing.assert_array_equal(np.asarray(a)[kept], np.asarray(b)[kept])
    for a, b in zip(
        jax.tree.leaves(one.priorities), jax.tree.leaves(other.priorities), strict=True
    ):
        np.testing.assert_allclose(a, b)
