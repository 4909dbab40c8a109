"""What a film costs, and that adding to it does not copy it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filmed import some

from understudy.buffers import frame_replay as films
from understudy.buffers.replay import revise
from understudy.types import ArraySpec, Discrete, Sequences, Spec, Transition

ATARI = Spec(ArraySpec((4, 84, 84), "uint8", frames=4), Discrete(6))
SMALL = Spec(ArraySpec((2, 3, 5), "uint8", frames=2), Discrete(6))
SEQUENCES = Sequences(burn_in=2, length=3, stride=4, memory=8)


@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize("lanes", [1, 8, 128])
def test_a_million_frames_take_7_gigabytes(lanes, prioritised):
    """Within a fraction of a percent of the bytes of the frames themselves."""
    size = films.size_in_bytes(ATARI, 1_000_000, lanes, prioritised)
    assert size == pytest.approx(7.06e9, rel=0.01)
    recurrent = Sequences(burn_in=20, length=40, stride=40, memory=512)
    size = films.size_in_bytes(ATARI, 1_000_000, lanes, prioritised, recurrent)
    assert size == pytest.approx(7.06e9, rel=0.02)


@pytest.mark.parametrize("sequences", [None, SEQUENCES])
@pytest.mark.parametrize("capacity, lanes", [(1, 1), (100, 7)])
def test_the_announced_size_is_what_is_allocated(capacity, lanes, sequences):
    film = jax.eval_shape(lambda: films.create(SMALL, capacity, lanes, True, sequences))
    assert sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(film)
    ) == films.size_in_bytes(SMALL, capacity, lanes, True, sequences)
    assert film.storage.frame.dtype == jnp.uint8 and film.storage.action.dtype == jnp.int32
    assert film.storage.frame.shape[2:] == (3, 5)
    assert film.storage.reward.size >= capacity
    if sequences:
        assert film.storage.reward.shape[1] % sequences.stride == 0


SLOTS = 54_324  # a number that no other array has


KINDS = [(1, None, False), (2, None, True), (1, SEQUENCES, True), (2, SEQUENCES, False)]
LOOPS = [(False, 0), (True, 2)]


@pytest.mark.parametrize(
    "lanes, sequences, prioritised, looped, members",
    some((0, 3, 5, 6), [(*kind, *loop) for kind in KINDS for loop in LOOPS]),
)
def test_a_donated_film_is_updated_in_place(lanes, sequences, prioritised, looped, members):
    """Added to, sampled and its priorities revised: no instruction of the compiled program copies
    an array as long as a lane."""

    def create():
        film = films.create(SMALL, (SLOTS - 2) * lanes, lanes, prioritised, sequences)
        return jax.tree.map(lambda x: jnp.stack([x] * members), film) if members else film

    film = jax.jit(create)()
    assert film.storage.reward.shape[-2:] == (lanes, SLOTS)
    one = jnp.float32(1.0)

    def once(film, key):
        seen, flag = jnp.ones((lanes, 2, 3, 5), jnp.uint8), jnp.zeros(lanes, bool)
        step = Transition(seen, jnp.ones(lanes, jnp.int32), jnp.ones(lanes), flag, flag, seen)
        memory = jnp.ones((lanes, SEQUENCES.memory)) if sequences else None
        film = films.add(film, step, ~flag, memory)
        batch, place = films.sample(film, key, 4, gamma=one, reward_scale=one, n_step=2)
        if film.priorities is not None:
            priorities = revise(film.priorities, place, place * 1.0, 0.5, jnp.bool_(True))
            film = film._replace(priorities=priorities)
        return film, jax.tree.map(jnp.sum, batch)

    keys = jax.random.PRNGKey(0)
    if members:
        once, keys = jax.vmap(once), jax.random.split(keys, members)

    def program(film, keys):
        if looped:
            return jax.lax.scan(lambda film, _: once(film, keys), film, length=3)
        return once(film, keys)

    compiled = jax.jit(program, donate_argnums=0).lower(film, keys).compile()
    lines = compiled.as_text().splitlines()
    lengths = {str(SLOTS // part * all) for part in (1, 4) for all in (1, lanes)}
    assert any(f",{SLOTS}," in line for line in lines)
    for line in lines:
        if " copy(" in line:
            shape = line.split(" copy(")[0].split("[")[-1].split("]")[0]
            assert not lengths & set(shape.split(",")), line
    before = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(film.storage)]
    after, _ = compiled(film, keys)
    assert before == [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(after.storage)]
    assert np.all(np.asarray(after.stored) == (3 if looped else 1))
