"""What a frame replay buffer costs, and that adding to it does not copy it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.buffers.donation import LONG_LANE, assert_in_place, pointers
from tests.buffers.frame_lists import some
from tests.buffers.plain_lists import hyper
from understudy.buffers import FrameReplayBuffer
from understudy.types import ArraySpec, Chunk, Discrete, Sequences, Spec, Step

ATARI = Spec(ArraySpec((4, 84, 84), "uint8", frames=4), Discrete(6))
SMALL = Spec(ArraySpec((2, 3, 5), "uint8", frames=2), Discrete(6))
SEQUENCES = Sequences(burn_in=2, length=3, stride=4, memory=8)


@pytest.mark.parametrize("exponent", [None, 0.6])
@pytest.mark.parametrize("lanes", [1, 8, 128])
def test_a_million_frames_take_7_gigabytes(lanes, exponent):
    """Within a fraction of a percent of the bytes of the frames themselves."""
    buffer = FrameReplayBuffer(ATARI, 1_000_000, lanes, priority_exponent=exponent)
    assert buffer.nbytes == pytest.approx(7.06e9, rel=0.01)
    recurrent = Sequences(burn_in=20, length=40, stride=40, memory=512)
    buffer = FrameReplayBuffer(
        ATARI, 1_000_000, lanes, priority_exponent=exponent, sequences=recurrent
    )
    assert buffer.nbytes == pytest.approx(7.06e9, rel=0.02)


@pytest.mark.parametrize("sequences", [None, SEQUENCES])
@pytest.mark.parametrize("capacity, lanes", [(1, 1), (100, 7)])
def test_the_announced_size_is_what_is_allocated(capacity, lanes, sequences):
    buffer = FrameReplayBuffer(SMALL, capacity, lanes, priority_exponent=0.6, sequences=sequences)
    state = jax.eval_shape(buffer.init)
    assert buffer.nbytes == sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert state.storage.frame.dtype == jnp.uint8 and state.storage.action.dtype == jnp.int32
    assert state.storage.frame.shape == (lanes, buffer.num_slots, 3, 5)
    assert state.storage.reward.size >= capacity
    if sequences:
        assert buffer.num_slots % sequences.stride == 0


KINDS = [(1, None, None), (2, None, 0.5), (1, SEQUENCES, 0.5), (2, SEQUENCES, None)]
LOOPS = [(False, 0), (True, 2)]


@pytest.mark.parametrize(
    "lanes, sequences, exponent, looped, seeds",
    some((0, 3, 5, 6), [(*kind, *loop) for kind in KINDS for loop in LOOPS]),
)
def test_a_donated_buffer_is_updated_in_place(lanes, sequences, exponent, looped, seeds):
    """Added to, sampled and its priorities updated, in a loop and for several seeds: no instruction
    of the compiled program copies an array as long as a lane."""
    capacity = (LONG_LANE - 2) * lanes
    buffer = FrameReplayBuffer(SMALL, capacity, lanes, 4, 2, exponent, sequences=sequences)
    assert buffer.num_slots == LONG_LANE

    def create():
        state = buffer.init()
        return jax.tree.map(lambda x: jnp.stack([x] * seeds), state) if seeds else state

    def once(state, key):
        seen, flag = jnp.ones((lanes, 2, 3, 5), jnp.uint8), jnp.zeros(lanes, bool)
        step = Step(seen, jnp.ones(lanes, jnp.int32), jnp.ones(lanes), flag, flag, seen)
        recurrent_state = jnp.ones((lanes, SEQUENCES.memory)) if sequences else None
        state = buffer.add(state, Chunk.of_one_step(step, ~flag, recurrent_state))
        batch, indices = buffer.sample(state, key, hyper(1.0))
        priorities = buffer.update_priorities(
            state, indices, batch.reward, batch.weight, jnp.bool_(True)
        )
        return buffer.with_priorities(state, priorities), jax.tree.map(jnp.sum, batch)

    state, keys = jax.jit(create)(), jax.random.PRNGKey(0)
    if seeds:
        once, keys = jax.vmap(once), jax.random.split(keys, seeds)

    def program(state, keys):
        if looped:
            return jax.lax.scan(lambda state, _: once(state, keys), state, length=3)
        return once(state, keys)

    compiled = jax.jit(program, donate_argnums=0).lower(state, keys).compile()
    assert f",{LONG_LANE}," in compiled.as_text()
    assert_in_place(compiled, counts_slots=exponent is not None and sequences is None)
    before = pointers(state.storage)
    after, _ = compiled(state, keys)
    assert before == pointers(after.storage)
    assert np.all(np.asarray(after.stored) == (3 if looped else 1))
