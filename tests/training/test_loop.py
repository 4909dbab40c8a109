"""The host loop stores exactly what happened and updates exactly when it should."""

from functools import partial

import jax
import numpy as np
import pytest

from tests.envs.scripted import HIGH, LOW, SCRIPT, Scripted
from understudy.training import loop
from understudy.training.learner import Call
from understudy.training.state_packing import Leaves, Vectors
from understudy.training.step_packing import as_bytes, step_dtype
from understudy.training.transport import Rows, Transport

pytestmark = pytest.mark.agents


def stored_rows(trainer, member=0):
    """What a member's replay holds, lane by lane, oldest first, as NumPy."""
    replay = jax.device_get(jax.tree.map(lambda x: x[member], trainer.experience))
    return [
        jax.tree.map(lambda store, lane=lane: store[lane, : replay.stored[lane]], replay.storage)
        for lane in range(len(replay.stored))
    ]


@pytest.mark.parametrize(("num_envs", "learns"), [(1, False), (3, True)])
def test_replay_holds_the_scripted_steps_and_nothing_else(make_trainer, num_envs, learns):
    iterations, enough = 30, 20 if learns else 512
    trainer = make_trainer(
        "td3", lambda: Scripted(rude=True), num_envs=num_envs, min_buffer_size=enough
    )
    trainer.advance(iterations)
    assert (trainer.position.updates > 0) == learns
    expected = [
        (episode, time, time == length - 1 and end != "truncated", time == length - 1)
        for episode, (length, end) in enumerate(SCRIPT * 10)
        for time in range(length)
    ][: iterations - 1]  # the last step is still on its way into replay
    for lane in stored_rows(trainer):
        got = [
            (int(seen[1]), int(seen[2]), bool(terminated), bool(last))
            for seen, terminated, last in zip(
                lane.observation, lane.terminated, lane.last, strict=True
            )
        ]
        assert got == expected
        # The next observation is the true one: same episode, one step later, also at the end.
        np.testing.assert_array_equal(lane.next_observation[:, 1], lane.observation[:, 1])
        np.testing.assert_array_equal(lane.next_observation[:, 2], lane.observation[:, 2] + 1)
        # Stored actions are normalized; the environment got them in its own bounds.
        assert np.abs(lane.action).max() <= 1
        real = LOW + (lane.action + 1) / 2 * (HIGH - LOW)
        np.testing.assert_allclose(lane.reward, real[:, 0] + 16 * real[:, 1], rtol=1e-5)


def test_several_environments_and_blocks(make_trainer):
    trainer = make_trainer(
        "td3", "Pendulum-v1", num_envs=4, update_every=8, updates_per_step=0.5, min_buffer_size=16
    )
    trainer.advance(21)
    assert trainer.position.updates == int(trainer.learner.state.updates[0])
    # Blocks of 8 transitions (2 iterations), 4 updates each, from 16 transitions on.
    assert trainer.position.updates == 4 * (20 // 2 - 1)


def test_updates_follow_the_schedule_and_stopping_between_calls_changes_nothing(make_trainer):
    whole, parts = (
        make_trainer("sac", "Pendulum-v1", start_steps=5, min_buffer_size=30) for _ in range(2)
    )
    whole.advance(90)
    for count in (1, 4, 25):
        parts.advance(count)
    assert parts.position.updates == 0  # the thirtieth step has not been added yet
    parts.advance(20)
    assert parts.position.updates == 20
    assert int(parts.learner.state.updates[0]) == 20
    assert parts.steps == 50
    parts.advance(40)
    for a, b in zip(jax.tree.leaves(whole.learner), jax.tree.leaves(parts.learner), strict=True):
        np.testing.assert_array_equal(a, b)


def cache_sizes(trainer):
    programs = (trainer.collector.actors[0].programs[False], trainer.transport.program)
    return [program._cache_size() for program in programs]


TWO = dict(num_seeds=2, num_envs=2, updates_per_step=0.5)  # one update per iteration


@pytest.fixture(scope="module")
def plain(make_shared_trainer):
    """A trainer of two seeds, and how many programs it had on the way and at the end."""
    trainer = make_shared_trainer("td3", "Pendulum-v1", **TWO)
    trainer.advance(40)
    before = cache_sizes(trainer)
    trainer.metrics()  # reads and replaces the learner in the middle
    trainer.advance(30)
    return trainer, before, cache_sizes(trainer)


def test_nothing_is_compiled_again_in_the_loop(plain):
    _, before, after = plain
    assert after == before
    assert before[1] == 3  # no update, one that skips the actor, one that does not


@pytest.mark.parametrize("chunk_steps", [1, 4])
def test_replay_is_updated_in_place(make_trainer, chunk_steps):
    """No instruction of the compiled program copies an array of the storage's size."""
    trainer = make_trainer("sac", "Pendulum-v1", buffer_size=54_320)
    trainer.advance(2)
    transport, rows = trainer.transport, step_dtype(trainer.setup.algorithm, trainer.setup.spec)
    lowered = transport.program.lower(
        transport.packed,
        transport.experience,
        Rows(as_bytes(np.zeros((1, chunk_steps, 1), rows))),
        transport.next_index,
        None,
        Call(chunk_steps, phase=0),
    )
    lines = lowered.compile().as_text().splitlines()
    assert any("54321" in line for line in lines)
    assert not [line for line in lines if "54321" in line.split(" copy(")[0] and " copy(" in line]


def test_an_accelerator_would_compute_what_the_host_does(plain, make_trainer, monkeypatch):
    """Packed and threaded, on a CPU that plays the accelerator: the same run."""
    here = plain[0]
    monkeypatch.setattr(loop, "Transport", partial(Transport, accelerated=True))
    there = make_trainer("td3", "Pendulum-v1", **TWO)
    assert isinstance(there.transport.form, Vectors)
    assert isinstance(here.transport.form, Leaves)
    there.advance(40)
    there.metrics()
    there.advance(30)
    for a, b in zip(
        jax.tree.leaves((here.learner, here.experience)),
        jax.tree.leaves((there.learner, there.experience)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_an_accelerator_knows_the_places_of_several_updates(make_trainer, monkeypatch):
    """Chunks of 4 steps. Updates begin after two, so the first chunk owes a part of a period."""
    settings = TWO | dict(chunk_steps=4, policy_delay=2, min_buffer_size=4)
    here = make_trainer("td3", "Pendulum-v1", **settings)
    monkeypatch.setattr(loop, "Transport", partial(Transport, accelerated=True))
    there = make_trainer("td3", "Pendulum-v1", **settings)
    places = []
    for trainer in (here, there):
        program, calls = trainer.transport.program, []
        trainer.transport.program = lambda *given, program=program, calls=calls: (
            calls.append((given[-1].count, given[-1].phase)) or program(*given)
        )
        trainer.advance(20)
        trainer.metrics()
        places.append([call for call in calls if call[0]])
    assert places == [[(3, None), *[(4, None)] * 3], [(3, None), *[(4, 1)] * 3]]
    for a, b in zip(jax.tree.leaves(here.learner), jax.tree.leaves(there.learner), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_an_error_in_the_learning_thread_reaches_the_loop(make_trainer, monkeypatch):
    monkeypatch.setattr(loop, "Transport", partial(Transport, accelerated=True))
    trainer = make_trainer("td3", "Pendulum-v1")
    trainer.advance(5)

    def fail(*arguments):
        raise RuntimeError("out of memory")

    trainer.transport.program = fail
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.advance(5)


def test_episode_statistics(make_trainer):
    trainer = make_trainer("td3", Scripted, min_buffer_size=512)
    trainer.advance(sum(length for length, _ in SCRIPT))
    episodes = trainer.episodes()
    assert [episode.length for episode in episodes] == [length for length, _ in SCRIPT]
    assert [episode.step for episode in episodes] == [1, 4, 6, 7, 11, 12]
    assert np.isfinite([episode.total_reward for episode in episodes]).all()
    assert trainer.episodes() == []
