"""What a replay buffer costs, and that adding to it does not copy it."""

import jax
import jax.numpy as jnp
import pytest

from tests.buffers.donation import pointers
from understudy.buffers import ReplayBuffer, sum_tree
from understudy.types import ArraySpec, Chunk, Continuous, Discrete, Spec, Step

CHEETAH = Spec(ArraySpec((17,)), Continuous((-1.0,) * 6, (1.0,) * 6, (6,)))
PIXELS = Spec(ArraySpec((8, 8, 3), "uint8"), Discrete(4))


def test_a_million_half_cheetah_steps_take_170_megabytes():
    for lanes in (1, 8):
        assert ReplayBuffer(CHEETAH, 1_000_000, lanes).nbytes == pytest.approx(170e6, rel=0.1)


@pytest.mark.parametrize("spec", [CHEETAH, PIXELS])
@pytest.mark.parametrize("capacity, lanes", [(100, 1), (100, 7)])
def test_the_announced_size_is_what_is_allocated(spec, capacity, lanes):
    buffer = ReplayBuffer(spec, capacity, lanes)
    state = buffer.init()
    assert buffer.nbytes == sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    slots = state.storage.reward.shape[1]
    assert slots == buffer.num_slots
    assert lanes * (slots - 1) >= capacity  # one slot a lane is never sampled
    prioritized = ReplayBuffer(spec, capacity, lanes, priority_exponent=0.6)
    largest = jnp.float32(1.0).nbytes
    tree = sum(level.nbytes for level in sum_tree.create(lanes * slots).levels)
    assert prioritized.nbytes - buffer.nbytes == tree + largest


def test_storage_keeps_its_dtypes():
    storage = jax.eval_shape(ReplayBuffer(PIXELS, 10, 1).init).storage
    assert storage.observation.dtype == jnp.uint8 and storage.next_observation.dtype == jnp.uint8
    assert storage.action.dtype == jnp.int32
    assert storage.terminated.dtype == storage.last.dtype == jnp.bool_


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_donated_buffer_is_updated_in_place(lanes):
    """The same memory before and after, and the old state is gone."""
    buffer = ReplayBuffer(CHEETAH, 1000, lanes)
    append = jax.jit(buffer.add, donate_argnums=0)
    flag = jnp.zeros(lanes, bool)
    row = jnp.ones((lanes, 17))
    step = Step(row, jnp.ones((lanes, 6)), jnp.ones(lanes), flag, flag, row)
    chunk = Chunk.of_one_step(step, ~flag)
    state = jax.jit(buffer.init)()
    for _ in range(3):
        before = pointers(state.storage)
        old, state = state, append(state, chunk)
        assert before == pointers(state.storage)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
    assert state.stored.tolist() == [3] * lanes
