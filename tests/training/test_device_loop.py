"""The device loop: the same facts as the host loop's, without leaving the device."""

import copy

import jax
import numpy as np
import pytest

from understudy.runs.config import RunConfig
from understudy.training import device_loop as device

pytestmark = pytest.mark.agents


@pytest.fixture
def short_programs(monkeypatch):
    monkeypatch.setattr(device, "ITERATIONS_PER_PROGRAM", 20)


LONG = dict(num_envs=2, buffer_size=2000)
EARLY, LATE = 80, 450  # iterations


@pytest.fixture(scope="module")
def run(make_shared_trainer):
    """A run in short programs: its position and State early on, and its trainer later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "ITERATIONS_PER_PROGRAM", 20)
        trainer = make_shared_trainer("td3", "jax:Pendulum-v1", **LONG)
        trainer.advance(EARLY)
        early = copy.copy(trainer.position), jax.device_get(trainer.learner.state)
        trainer.advance(LATE - EARLY)
    return *early, trainer


def test_episodes_join_without_a_seam(run):
    trainer = run[2]
    storage = jax.tree.map(lambda x: x[0], jax.device_get(trainer.experience.storage))
    for lane in range(2):
        last = storage.last[lane, :450]
        assert np.flatnonzero(last).tolist() == [199, 399]
        assert not storage.terminated[lane].any()
        following, observation = storage.next_observation[lane], storage.observation[lane]
        inside = np.flatnonzero(~last[:449])
        np.testing.assert_array_equal(following[inside], observation[inside + 1])
        # After an end comes a reset, never a bridge.
        assert not np.allclose(following[199], observation[200])
        assert np.isfinite(storage.reward[lane, :450]).all()
        assert np.abs(storage.action[lane, :450]).max() <= 1
    returns = np.array([episode.total_reward for episode in trainer.episodes()])
    expected = [storage.reward[lane, s : s + 200].sum() for s in (0, 200) for lane in range(2)]
    np.testing.assert_allclose(returns, expected, rtol=1e-4)


def test_the_steady_program_computes_what_the_general_one_does(run, make_trainer, short_programs):
    position, state, quick = run
    assert quick.update_schedule.steady(EARLY - 20, EARLY)
    masked = make_trainer("td3", "jax:Pendulum-v1", **LONG)
    masked.steady_program = None  # any use of it would fail
    masked.update_schedule = _NeverSteady(masked.update_schedule)
    masked.advance(EARLY)
    assert position == masked.position
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(masked.learner.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_steady_programs_do_the_steps_between_default_rows_of_the_log(make_trainer, short_programs):
    """Also where a block of the update schedule does not divide the usual interval."""
    trainer = make_trainer("sac", "jax:Pendulum-v1", **LONG, update_every=48)
    unit = trainer.least_iterations
    assert unit == 24
    between = RunConfig().completed(10_000, 2, 200, unit).log_every // 2
    assert between % unit == 0
    trainer.advance(between)
    trainer.general_program = None  # any use of it would fail
    trainer.advance(between)
    assert trainer.position.iterations == 2 * between


class _NeverSteady:
    def __init__(self, update_schedule):
        self._cadence = update_schedule

    def __getattr__(self, name):
        return getattr(self._cadence, name)

    def steady(self, start, stop):
        return False


@pytest.mark.slow
def test_any_number_of_iterations(make_trainer, short_programs):
    whole = make_trainer("sac", "jax:Pendulum-v1", update_every=4)
    parts = make_trainer("sac", "jax:Pendulum-v1", update_every=4)
    whole.advance(97)
    for count in (3, 40, 1, 53):
        parts.advance(count)
    assert whole.position == parts.position
    assert whole.position.updates == int(whole.learner.state.updates[0])
    for a, b in zip(
        jax.tree.leaves(whole.learner.state), jax.tree.leaves(parts.learner.state), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# One member: also in test_updates.py, with priorities.
@pytest.mark.parametrize("members", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_scan_does_not_copy_the_ring(make_trainer, members):
    trainer = make_trainer("sac", "jax:Pendulum-v1", num_seeds=members, buffer_size=54_320)
    held = (trainer.learner, trainer.experience, trainer.world)
    lowered = trainer.steady_program.lower(held, np.int32(0), {})
    lines = lowered.compile().as_text().splitlines()
    assert any("54321" in line for line in lines)
    assert not [line for line in lines if "54321" in line.split(" copy(")[0] and " copy(" in line]


@pytest.mark.fault(
    20, "a non-finite update is discarded as a whole and counted; ten in a row freeze the seed"
)
def test_a_discarded_update_touches_one_member_only(make_trainer, short_programs):
    """A NaN in one member's ring spoils none of its weights and nothing of its neighbor's."""
    trainer = make_trainer("sac", "jax:Pendulum-v1", num_seeds=2)
    trainer.advance(40)
    before = jax.device_get(trainer.learner)
    reward = trainer.experience.storage.reward.at[0].set(np.nan)
    trainer.experience = trainer.experience._replace(
        storage=trainer.experience.storage._replace(reward=reward)
    )
    trainer.advance(5)
    after = jax.device_get(trainer.learner)
    for old, new in zip(jax.tree.leaves(before.state), jax.tree.leaves(after.state), strict=True):
        assert np.isfinite(new).all()
        if old.shape[1:] != (2,) or old.dtype != np.uint32:  # the random key moves on
            np.testing.assert_array_equal(old[0], new[0])
    assert after.state.updates.tolist() == [before.state.updates[0], before.state.updates[1] + 5]
    assert after.meter.discarded.tolist() == [5, 0]
    assert "discarded_updates" in trainer.metrics()
    trainer.advance(10)
    assert trainer.diverged().tolist() == [True, False]
    losses = trainer.metrics()["critic_loss"]
    assert np.isnan(losses[0]) and np.isfinite(losses[1])


def test_an_irregular_update_schedule(make_trainer, short_programs):
    """One or two updates after each iteration: 1.5 on average, and never a burst."""
    trainer = make_trainer(
        "td3", "jax:Pendulum-v1", num_seeds=2, num_envs=3, updates_per_step=0.5, min_buffer_size=6
    )
    assert not trainer.update_schedule.regular
    for iterations, updates in ((1, 0), (1, 1), (1, 3), (37, 58)):
        trainer.advance(iterations)
        assert trainer.position.updates == updates
        assert trainer.learner.state.updates.tolist() == [updates] * 2
