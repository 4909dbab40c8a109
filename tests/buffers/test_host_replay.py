"""Frame replay on the host is frame replay on the device, in NumPy."""

import errno
import os
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffers.frame_lists import filled, histories, num_stored, play, spec_of
from tests.buffers.plain_lists import hyper
from understudy.buffers import FrameReplayBuffer, HostReplayBuffer, host_replay
from understudy.buffers.frame_batch import to_batch
from understudy.buffers.frame_replay import TRIES
from understudy.errors import CheckpointError, ConfigError
from understudy.types import Sequences

SEQUENCES = Sequences(burn_in=2, length=3, stride=4, memory=2)
choices, locate, gather = (
    jax.jit(getattr(FrameReplayBuffer, name), static_argnums=0)
    for name in ("choices", "locate", "gather")
)
SHAPES = [(9, 2, 4, None), (12, 2, 1, None), (30, 2, 4, SEQUENCES)]


def definition(capacity, lanes, stack, sequences=None, *, num_seeds=1, seed=0, directory=None):
    frames = FrameReplayBuffer(spec_of(stack), capacity, lanes, 16, 3, sequences=sequences)
    return HostReplayBuffer(frames, num_seeds, seed, directory)


def hosted(buffer, chunk):
    """A buffer whose seeds all see the same [moments, lanes, ...], added one step at a time."""
    return add_steps(buffer, buffer.init(), chunk, range(len(chunk.valid)))


def seed_of(state, seed):
    return jax.tree.map(lambda x: x[seed], state)


def add_steps(buffer, state, chunk, moments):
    for moment in moments:
        row = jax.tree.map(
            lambda x, at=moment: np.stack([x[at : at + 1]] * buffer.num_seeds), chunk
        )
        state = buffer.add(state, row)
    return state


@jax.jit
def batches(drawn):
    """Of [seeds, updates, ...] the batches of the first update."""
    first = jax.tree.map(lambda x: x[:, 0], drawn)
    return jax.vmap(lambda drawn: to_batch(drawn, hyper(0.9, 0.5)))(first)


def assert_same(one, two):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(np.testing.assert_array_equal, one, two)


@pytest.mark.parametrize("capacity, lanes, stack, sequences", SHAPES)
@given(data=st.data())
@settings(max_examples=15)
def test_it_holds_and_gives_what_the_buffer_on_the_device_does(
    capacity, lanes, stack, sequences, data
):
    buffer = definition(capacity, lanes, stack, sequences, seed=5)
    frames = buffer.frames
    played = play(data.draw(histories(lanes)), buffer.spec)
    device = filled(frames, played)
    host = hosted(buffer, played.chunk)
    inside = {
        ".".join(k.name for k in p): x for p, x in jax.tree_util.tree_leaves_with_path(device)
    }
    arrays = buffer.state_dict(host)
    assert arrays.pop("slots") == buffer.num_slots == device.storage.reward.shape[1]
    assert set(arrays) == set(inside)
    for name, array in arrays.items():
        whole = np.asarray(inside[name])
        written = (slice(None), slice(array.shape[2])) if name.startswith("storage.") else ...
        np.testing.assert_array_equal(array[0], whole[written], err_msg=name)
        assert array.dtype == whole.dtype and np.count_nonzero(array) == np.count_nonzero(whole)
    total = int(choices(frames, device)[1].sum())
    assert num_stored(frames, seed_of(host, 0)) == num_stored(frames, device)
    if total == 0 and sequences is None:
        return
    drawn, count = buffer.sample_updates(host, 7, 1)
    assert count == 1
    tries = TRIES if sequences is None else 1
    nth = np.random.default_rng([5, 7]).integers(max(total, 1), size=(16, tries))
    lane, slot = locate(frames, device, nth)
    want = gather(frames, device, lane, slot, np.full(16, total > 0, np.float32))
    assert_same(batches(drawn), batches(jax.tree.map(lambda x: x[None, None], want)))


@pytest.fixture(scope="module")
def chunk():
    return play(["--", "-t", "tC", "--", "-X", "-T"] * 6, spec_of(4)).chunk


def test_draws_depend_on_seed_and_update_alone(chunk):
    buffer = definition(40, 2, 4, SEQUENCES, num_seeds=3, seed=3)
    state = hosted(buffer, chunk)
    drawn, _ = buffer.sample_updates(state, 9, 1)
    assert_same(drawn, buffer.sample_updates(state, 9, 1)[0])
    single = replace(buffer, num_seeds=1)
    alone = hosted(single, chunk)
    for seed in range(3):
        own, _ = replace(single, seed=3 + seed).sample_updates(alone, 9, 1)
        assert_same(jax.tree.map(lambda x, s=seed: x[s : s + 1], drawn), own)
    for other, update in ((replace(buffer, seed=4), 9), (buffer, 10)):
        assert np.any(drawn.frames != other.sample_updates(state, update, 1)[0].frames)


def test_several_updates_at_once_are_drawn_as_one_after_the_other(chunk, monkeypatch):
    """As many as may go to the device at once, and one in any case."""
    buffer = definition(40, 2, 4, SEQUENCES, num_seeds=2)
    state = hosted(buffer, chunk)
    drawn, count = buffer.sample_updates(state, 5, 3)
    assert count == 3 and drawn.frames.shape[:2] == (2, 3)
    for update in range(3):
        single, _ = buffer.sample_updates(state, 5 + update, 1)
        assert_same(jax.tree.map(lambda x, u=update: x[:, u : u + 1], drawn), single)
    size = sum(x.nbytes for x in jax.tree.leaves(drawn)) // 3
    for limit, want in ((2 * size, 2), (size - 1, 1)):
        monkeypatch.setattr(host_replay, "LARGEST_SAMPLE", limit)
        part, count = buffer.sample_updates(state, 5, 3)
        assert count == want
        assert_same(part, jax.tree.map(lambda x, n=want: x[:, :n], drawn))


def test_what_is_saved_comes_back(chunk):
    """And goes on alike, also when saved before it was full."""
    buffer = definition(40, 2, 4, SEQUENCES)
    state = add_steps(buffer, buffer.init(), chunk, range(9))
    saved = buffer.state_dict(state)
    assert saved["storage.frame"].shape[2] < buffer.num_slots
    again = buffer.load_state_dict(buffer.init(), saved)
    state, again = (add_steps(buffer, x, chunk, range(9, 29)) for x in (state, again))
    assert_same(buffer.state_dict(state), buffer.state_dict(again))
    assert_same(buffer.sample_updates(state, 0, 1), buffer.sample_updates(again, 0, 1))


def test_what_does_not_fit_is_not_loaded(chunk):
    buffer = definition(40, 2, 4)
    saved = buffer.state_dict(hosted(buffer, chunk))
    for shape in [(9, 2, 4), (80, 2, 4), (40, 1, 4), (40, 2, 1), (40, 2, 4, SEQUENCES)]:
        other = definition(*shape)
        with pytest.raises(CheckpointError, match=r"does not fit this agent, in \w+"):
            other.load_state_dict(other.init(), saved)


def test_a_buffer_in_a_file_is_the_buffer_in_memory_and_leaves_nothing_behind(chunk, tmp_path):
    plain = definition(40, 2, 4, SEQUENCES)
    mapped = replace(plain, directory=tmp_path)
    in_file, in_memory = hosted(mapped, chunk), hosted(plain, chunk)
    assert not list(tmp_path.iterdir())
    assert mapped.nbytes == plain.nbytes
    assert_same(mapped.state_dict(in_file), plain.state_dict(in_memory))
    assert_same(mapped.sample_updates(in_file, 1, 1), plain.sample_updates(in_memory, 1, 1))
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(host_replay.os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"needs 0\.1 GiB in .*No space left"):
        definition(3_000_000, 1, 4, directory=tmp_path).init()
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"GiB in .*nowhere: No such file"):
        definition(10, 1, 4, directory=tmp_path / "nowhere").init()
