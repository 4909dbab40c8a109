"""What a ring costs, and that adding to it does not copy it."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from understudy.buffers.replay import add, create, size_in_bytes
from understudy.types import ArraySpec, Continuous, Discrete, Spec, Transition

CHEETAH = Spec(ArraySpec((17,)), Continuous((-1.0,) * 6, (1.0,) * 6, (6,)))
PIXELS = Spec(ArraySpec((8, 8, 3), "uint8"), Discrete(4))


def test_a_million_half_cheetah_transitions_take_170_megabytes():
    for lanes in (1, 8):
        assert size_in_bytes(CHEETAH, 1_000_000, lanes) == pytest.approx(170e6, rel=0.1)


@pytest.mark.parametrize("spec", [CHEETAH, PIXELS])
@pytest.mark.parametrize("capacity, lanes", [(100, 1), (100, 7)])
def test_the_announced_size_is_what_is_allocated(spec, capacity, lanes):
    ring = create(spec, capacity, lanes)
    allocated = sum(leaf.nbytes for leaf in jax.tree.leaves(ring.storage))
    assert allocated == size_in_bytes(spec, capacity, lanes)
    slots = ring.storage.reward.shape[1]
    assert lanes * (slots - 1) >= capacity  # one slot a lane is never sampled


def test_storage_keeps_its_dtypes():
    storage = create(PIXELS, 10, 1).storage
    assert storage.observation.dtype == jnp.uint8 and storage.next_observation.dtype == jnp.uint8
    assert storage.action.dtype == jnp.int32
    assert storage.terminated.dtype == storage.last.dtype == jnp.bool_


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_donated_ring_is_updated_in_place(lanes):
    """The same memory before and after, and the old ring is gone."""
    append = jax.jit(add, donate_argnums=0)
    flag = jnp.zeros(lanes, bool)
    row = jnp.ones((lanes, 17))
    step = Transition(row, jnp.ones((lanes, 6)), jnp.ones(lanes), flag, flag, row)

    @partial(jax.jit, static_argnums=0)
    def build(capacity):
        return create(CHEETAH, capacity, lanes)

    ring = build(1000)
    for _ in range(3):
        before = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(ring.storage)]
        old, ring = ring, append(ring, step, ~flag)
        after = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(ring.storage)]
        assert before == after
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
    assert ring.stored.tolist() == [3] * lanes
