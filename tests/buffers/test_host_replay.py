"""A film on the host is the film on the device, in NumPy."""

import errno
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filmed import histories, played, player, spec_of
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.buffers import frame_replay as films
from understudy.buffers import host_replay as host_film
from understudy.buffers.host_replay import HostFilm, to_batch
from understudy.errors import CheckpointError, ConfigError
from understudy.types import Sequences

SEQUENCES = Sequences(burn_in=2, length=3, stride=4, memory=2)
SHAPES = [(9, 2, 4, None), (12, 2, 1, None), (30, 2, 4, SEQUENCES)]


def hosted(rows, capacity, lanes, stack, sequences, members=1, directory=None) -> HostFilm:
    """Of `members` that all see the same, [moments, lanes, ...]."""
    host = HostFilm(spec_of(stack), capacity, lanes, members, sequences, directory)
    rows = jax.tree.map(lambda x: np.stack([x] * members, axis=1), rows)
    for moment in range(len(rows[1])):
        step, valid, memory = jax.tree.map(lambda x, at=moment: x[at], rows)
        host.add(step, valid, memory if sequences else None)
    return host


@jax.jit
def batches(drawn):
    gamma, scale = jnp.float32(0.9), jnp.float32(0.5)
    return jax.vmap(lambda drawn: to_batch(drawn, gamma=gamma, reward_scale=scale))(drawn)


def assert_same(one, two):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(np.testing.assert_array_equal, one, two)


@pytest.mark.parametrize("capacity, lanes, stack, sequences", SHAPES)
@given(data=st.data())
@settings(max_examples=15)
def test_it_holds_and_gives_what_the_film_on_the_device_does(
    capacity, lanes, stack, sequences, data
):
    rows, _, _ = played(data.draw(histories(lanes)), stack)
    film = player(capacity, lanes, stack, sequences)(rows)
    host = hosted(rows, capacity, lanes, stack, sequences)
    inside = {".".join(k.name for k in p): x for p, x in jax.tree_util.tree_leaves_with_path(film)}
    named = host.named()
    assert named.pop("slots") == film.storage.reward.shape[1]
    assert set(named) == set(inside)
    for name, array in named.items():
        whole = np.asarray(inside[name])
        written = (slice(None), slice(array.shape[2])) if name.startswith("storage.") else ...
        np.testing.assert_array_equal(array[0], whole[written], err_msg=name)
        assert array.dtype == whole.dtype and np.count_nonzero(array) == np.count_nonzero(whole)
    total = int(films.choices(film)[1].sum())
    assert host.num_stored().tolist() == [films.num_stored(film)]
    if total == 0 and sequences is None:
        return
    drawn = host.sample(32, 3, seed=5, update=7)
    tries = films.TRIES if sequences is None else 1
    nth = np.random.default_rng([5, 7]).integers(max(total, 1), size=(32, tries))
    lane, slot = films.locate(film, jnp.asarray(nth))
    weight = jnp.full(32, float(total > 0))
    want = films.gather(film, lane, slot, 3, weight)
    assert_same(batches(drawn), batches(jax.tree.map(lambda x: x[None], want)))


@pytest.fixture(scope="module")
def rows():
    return played(["--", "-t", "tC", "--", "-X", "-T"] * 6, 4)[0]


def test_draws_depend_on_seed_and_update_alone(rows):
    host = hosted(rows, 40, 2, 4, SEQUENCES, members=3)
    drawn = host.sample(16, 1, seed=3, update=9)
    assert_same(drawn, host.sample(16, 1, seed=3, update=9))
    single = hosted(rows, 40, 2, 4, SEQUENCES)
    for member in range(3):
        alone = single.sample(16, 1, seed=3 + member, update=9)
        assert_same(jax.tree.map(lambda x, m=member: x[m : m + 1], drawn), alone)
    for other in ({"seed": 4, "update": 9}, {"seed": 3, "update": 10}):
        assert np.any(drawn.frames != host.sample(16, 1, **other).frames)


def test_what_is_saved_comes_back(rows):
    """And goes on alike, also when saved before it was full."""
    first = jax.tree.map(lambda x: x[:9], rows)
    rest = jax.tree.map(lambda x: x[9:, None], rows)
    host = hosted(first, 40, 2, 4, SEQUENCES)
    saved = {name: array.copy() for name, array in host.named().items()}
    again = HostFilm(spec_of(4), 40, 2, 1, SEQUENCES)
    assert saved["storage.frame"].shape[2] < again.named()["memory"].shape[2] * SEQUENCES.stride
    again.put_back(saved)
    for film in (host, again):
        for moment in range(20):
            film.add(*jax.tree.map(lambda x, at=moment: x[at], rest))
    assert_same(host.named(), again.named())
    assert_same(host.sample(8, 2, seed=0, update=0), again.sample(8, 2, seed=0, update=0))


def test_what_does_not_fit_is_not_put_back(rows):
    saved = hosted(rows, 40, 2, 4, None).named()
    for capacity, lanes, stack, sequences in [
        (9, 2, 4, None), (80, 2, 4, None), (40, 1, 4, None), (40, 2, 1, None),
        (40, 2, 4, SEQUENCES),
    ]:  # fmt: skip
        with pytest.raises(CheckpointError, match=r"does not fit this agent, in \w+"):
            HostFilm(spec_of(stack), capacity, lanes, 1, sequences).put_back(saved)


def test_a_film_in_a_file_is_the_film_in_memory_and_leaves_nothing_behind(rows, tmp_path):
    mapped = hosted(rows, 40, 2, 4, SEQUENCES, directory=tmp_path)
    plain = hosted(rows, 40, 2, 4, SEQUENCES)
    assert not list(tmp_path.iterdir())
    assert mapped.size_in_bytes == plain.size_in_bytes
    assert_same(mapped.named(), plain.named())
    assert_same(mapped.sample(8, 2, seed=0, update=1), plain.sample(8, 2, seed=0, update=1))


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(host_film.os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"needs 0\.1 GiB in .*No space left"):
        HostFilm(spec_of(4), 3_000_000, 1, 1, directory=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"GiB in .*nowhere: No such file"):
        HostFilm(spec_of(4), 10, 1, 1, directory=tmp_path / "nowhere")
