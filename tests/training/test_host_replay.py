"""Replay on the host or on disk holds what the device's does, and updates learn from it alike."""

import errno
import os
import re
from functools import partial

import gymnasium
import jax
import numpy as np
import pytest

import understudy as us
from tests.envs.scripted import Scripted
from understudy import state_dict
from understudy.algorithms import find
from understudy.buffers import HostReplayBuffer, ReplayBuffer, host_replay
from understudy.buffers.frame_batch import to_batch
from understudy.envs.make import resolve
from understudy.errors import CheckpointError, ConfigError
from understudy.networks.augmentation import shift_images
from understudy.training import loop
from understudy.training import replay_placement as keeping
from understudy.training.transport import Transport

pytestmark = pytest.mark.agents

MEMORY = dict(memory="gru", memory_size=4, sequence_length=4, burn_in=2, sequence_stride=3)
# What is stored does not depend on what is learned.
RANDOM = dict(start_steps=1_000, buffer_size=60)
NEVER = 10**9  # an iteration after which learning would begin


class Screen(gymnasium.Env):
    """Pictures of noise; episodes of 3 to 9 steps, which are ended or cut off."""

    observation_space = gymnasium.spaces.Box(0, 255, (6, 6), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(3, 10))
        return self._look(), {}

    def step(self, action):
        self._left -= 1
        over = self._left == 0
        return self._look(), float(action), over and bool(self.np_random.integers(2)), over, {}

    def _look(self):
        return self.np_random.integers(0, 256, (6, 6), np.uint8)


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """A directory for large files, in which nothing ever stays."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("algorithm", "env", "settings", "storage", "learns"),
    [
        pytest.param("ddqn", Screen, {}, "disk", True, marks=pytest.mark.slow),
        pytest.param("ddqn", Screen, MEMORY, "host", True, marks=pytest.mark.slow),
        pytest.param("sac", "Pendulum-v1", MEMORY, "host", False, marks=pytest.mark.slow),
    ],
    ids=["images", "sequences of images", "sequences of vectors"],
)
def test_it_holds_what_the_device_would(make_trainer, algorithm, env, settings, storage, learns):
    make = partial(make_trainer, algorithm, env, num_seeds=2, num_envs=2, **RANDOM, **settings)
    there, here = make(), make(replay_storage=storage)
    for trainer in (there, here):
        if not learns:
            trainer.update_schedule = trainer.update_schedule.refilling(NEVER)
        trainer.advance(70)  # more than round once
    assert isinstance(here.buffer, HostReplayBuffer)
    named, wanted = (one.buffer.state_dict(one.experience) for one in (here, there))
    assert named.pop("slots") == wanted["storage.reward"].shape[2]
    assert named.keys() == wanted.keys()
    for name, array in wanted.items():
        # The recurrent state is that of weights which have learned from other samples.
        if name != "recurrent_state":
            np.testing.assert_array_equal(named[name], array, err_msg=name)
    assert here.position == there.position and (here.position.updates > 0) == learns


@pytest.mark.slow
def test_vectors_are_in_frame_replay_there(make_trainer):
    there, here = (
        make_trainer(
            "td3", lambda: Scripted(rude=True), replay_storage=storage, min_buffer_size=60, **RANDOM
        )
        for storage in ("device", "host")
    )
    for trainer in (there, here):
        trainer.advance(40)
    assert isinstance(there.buffer, ReplayBuffer) and there.position.updates == 0
    arrays = here.buffer.state_dict(here.experience)
    frames = {name: x[0, 0] for name, x in arrays.items() if "storage" in name}
    taken, seen = frames["storage.step"], jax.device_get(there.experience.storage)
    for name in ("action", "reward", "terminated", "last"):
        wanted = getattr(seen, name)[0, 0][: taken.sum()]
        np.testing.assert_array_equal(frames[f"storage.{name}"][taken], wanted)
    np.testing.assert_array_equal(
        frames["storage.frame"][taken], seen.observation[0, 0][: taken.sum()]
    )
    after = np.flatnonzero(taken) + 1
    np.testing.assert_array_equal(
        frames["storage.frame"][after], seen.next_observation[0, 0][: taken.sum()]
    )


@pytest.mark.parametrize(
    ("algorithm", "env", "settings"),
    [
        pytest.param("ddqn", Screen, {"random_shift": 1}, marks=pytest.mark.slow),
        ("sac", "Pendulum-v1", MEMORY | {"n_step": 2}),
    ],
    ids=["images", "sequences"],
)
def test_an_update_is_the_algorithms_own_of_what_was_drawn(
    make_trainer, monkeypatch, algorithm, env, settings
):
    """By hand, for each of two members; no step later than the last one is drawn from."""
    trainer = make_trainer(
        algorithm, env, num_seeds=2, replay_storage="host", normalize_rewards=True, **settings
    )
    trainer.advance(40)
    before, number = jax.device_get(trainer.learner), trainer.position.updates
    stored, add = [], HostReplayBuffer.add

    def add_and_draw(self, state, chunk):
        state = add(self, state, chunk)
        stored.append(jax.tree.map(lambda x: x[:, 0], self.sample_updates(state, number, 1)[0]))
        return state

    monkeypatch.setattr(HostReplayBuffer, "add", add_and_draw)
    trainer.advance(1)
    made, after = trainer.setup.algorithm, jax.device_get(trainer.learner)
    for member in (0, 1):
        drawn = jax.tree.map(lambda x, m=member: x[m], jax.device_get(stored[0]))
        state = jax.tree.map(lambda x, m=member: x[m], after.state)
        old = jax.tree.map(lambda x, m=member: x[m], before.state)._replace(
            normalizer=state.normalizer
        )
        wanted = by_hand(made, old, drawn, number)
        for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
        weights, former = made.get_weights(state), made.get_weights(old)
        learned = jax.tree.map(lambda a, b: bool((a != b).any()), weights, former)
        assert any(jax.tree.leaves(learned))


@partial(jax.jit, static_argnums=(0, 3))
def by_hand(algorithm, state, drawn, number):
    hyper, (key, shift_key, update_key) = state.hyper, jax.random.split(state.key, 3)
    batch = to_batch(drawn, hyper)
    if algorithm.needs.random_shift:
        batch = shift_images(batch, 1, algorithm.needs.random_shift, shift_key)
    batch = algorithm.prepare(state, batch)
    return algorithm.update(state, batch, update_key, algorithm.update_mask(number))[0]._replace(
        key=key
    )


def assert_alike(one, other):
    for a, b in zip(jax.tree.leaves(one.learner), jax.tree.leaves(other.learner), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    arrays, others = (each.buffer.state_dict(each.experience) for each in (one, other))
    for name, array in arrays.items():
        np.testing.assert_allclose(array, others[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_an_accelerator_would_compute_what_the_host_does(make_trainer, monkeypatch):
    settings = dict(num_seeds=2, num_envs=2, normalize_observations=True, replay_storage="host")
    here = make_trainer("ddqn", "CartPole-v1", **settings)
    monkeypatch.setattr(loop, "Transport", partial(Transport, accelerated=True))
    there = make_trainer("ddqn", "CartPole-v1", **settings)
    for trainer in (here, there):
        trainer.advance(40)
        trainer.metrics()
        trainer.advance(30)
    assert_alike(here, there)


@pytest.mark.slow
def test_many_updates_go_to_the_device_in_parts(make_trainer, monkeypatch):
    make = partial(
        make_trainer, "td3", "Pendulum-v1", update_every=5, replay_storage="host",
        anneal_learning_rate=True,
    )  # fmt: skip
    trainers, drawn, draw = [], [], HostReplayBuffer.sample_updates

    def count(*arguments):
        drawn.append(draw(*arguments)[1])
        return draw(*arguments)

    monkeypatch.setattr(HostReplayBuffer, "sample_updates", count)
    for largest in (2**20, 2_000):
        monkeypatch.setattr(host_replay, "LARGEST_SAMPLE", largest)
        trainers.append(make())
        trainers[-1].position.horizon = 100
        trainers[-1].schedule({})
        trainers[-1].advance(61)
    whole, parts = trainers
    assert drawn[:9] == [5] * 9 and max(drawn[9:]) < 5 and sum(drawn[9:]) == 45
    assert whole.position.updates == int(parts.learner.state.updates[0]) == 45
    assert_alike(whole, parts)


def with_free_memory(monkeypatch, **gigabytes):
    monkeypatch.setattr(keeping, "free_bytes", lambda name: int(gigabytes[name] * 2**30))


@pytest.mark.parametrize(
    ("free_bytes", "place"),
    [
        (dict(device=9.0, host=0.1, disk=0.1), "device"),
        (dict(device=8.0, host=17.0, disk=0.1), "host"),
        (dict(device=8.0, host=16.0, disk=17.0), "disk"),
    ],
)
def test_the_first_place_that_is_large_enough_is_taken(monkeypatch, caplog, free_bytes, place):
    algorithm = find("ddqn")(us.DDQNConfig(buffer_size=140_000_000))
    setup = keeping.TrainingSetup(algorithm, resolve(Screen).spec, 0, 1, 1)
    with_free_memory(monkeypatch, **free_bytes)
    with caplog.at_level("INFO", "understudy.training"):
        assert keeping.choose(setup).name == place
    [record] = caplog.records
    assert record.getMessage().startswith("replay: 140,000,000 steps of 6×6 uint8, 6.6 GiB ")
    assert record.levelname == ("INFO" if place == "device" else "WARNING")


def test_of_a_small_one_nothing_is_said(make_trainer, caplog):
    with caplog.at_level("INFO", "understudy.training"):
        make_trainer("ddqn", Screen, replay_storage="disk")
    assert not caplog.records


@pytest.mark.fault(19, "replay that fits nowhere is refused, with the space of each place")
def test_where_nothing_is_free(make_trainer, monkeypatch):
    with_free_memory(monkeypatch, device=0.5, host=0.3, disk=2.0)
    large, own = dict(buffer_size=20_000_000), "0.9 GiB {} (where {} GiB are free for it)"
    on_disk = f"on disk in {keeping.directory()}"
    each = [
        own.format(*facts)
        for facts in (("in memory", 0.4), ("in host memory", 0.1), (on_disk, 0.8))
    ]
    for asked, places in {
        "auto": " or ".join(each),
        "host": own.format("in host memory", 0.3),
    }.items():
        message = f"replay needs {places}: lower buffer_size (or the number of seeds)"
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            make_trainer("ddqn", Screen, replay_storage=asked, **large)
    with pytest.raises(ConfigError, match=r"replay needs 1\.\d GiB in memory \([^)]*\): lower"):
        make_trainer("ddqn", Screen, prioritized=True, **large)


def test_what_must_stay_on_the_device(make_trainer):
    for storage in ("host", "disk"):
        with pytest.raises(ConfigError, match="prioritized replay is kept on the device"):
            us.TD3Config(prioritized=True, replay_storage=storage)
        with pytest.raises(ConfigError, match="native environments keep replay on the device"):
            make_trainer("td3", "jax:Pendulum-v1", replay_storage=storage)


def test_a_run_goes_on_where_its_replay_was(make_trainer, monkeypatch):
    """Also if another place would be chosen by now."""
    make = partial(make_trainer, "ddqn", "CartPole-v1")
    there = make()
    with_free_memory(monkeypatch, device=0.0, host=1.0, disk=1.0)
    here = make()
    assert isinstance(here.buffer, HostReplayBuffer)
    here.advance(50)
    saved = here.snapshot()
    monkeypatch.undo()
    there.restore(saved)
    assert isinstance(there.buffer, HostReplayBuffer)
    for trainer in (here, there):
        trainer.advance(20)
    for a, b in zip(jax.tree.leaves(here.learner), jax.tree.leaves(there.learner), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("storage", [pytest.param("host", marks=pytest.mark.slow), "disk"])
def test_a_snapshot_does_not_change_with_its_original(make_trainer, storage):
    trainer = make_trainer("ddqn", Screen, num_envs=2, replay_storage=storage, **RANDOM)
    trainer.update_schedule = trainer.update_schedule.refilling(NEVER)
    trainer.advance(30)
    saved = trainer.snapshot().world
    copies = {name: array.tobytes() for name, array in saved.items()}
    trainer.advance(60)
    assert all(saved[name].tobytes() == copy for name, copy in copies.items())
    assert trainer.snapshot().world["experience.storage.frame"].tobytes() not in copies.values()


def test_a_disk_without_room_for_the_copy(make_trainer, monkeypatch):
    trainer = make_trainer("ddqn", Screen, replay_storage="disk")
    trainer.advance(10)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(state_dict.tempfile, "TemporaryFile", full)
    with pytest.raises(CheckpointError, match=r"copy of replay.*No space left"):
        trainer.snapshot()
