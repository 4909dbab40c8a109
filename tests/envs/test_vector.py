from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from tests.envs.scripted import Scripted, collect, expected, same
from understudy.envs import EpisodeSeeds
from understudy.envs.vector import UserVectorEnvs
from understudy.types import EnvironmentError

STEPS, ROWS = 40, 3
SEEDS = EpisodeSeeds(7, ROWS)


def only_first(row: int, episode: int) -> int | None:
    """Autoreset cannot be told a seed."""
    return SEEDS(row, episode) if episode == 0 else None


def vector(kind, mode, rude=False, **settings):
    factories = [partial(Scripted, row, rude) for row in range(ROWS)]
    return kind(factories, autoreset_mode=mode, **settings)


def verify(vector_env, mode):
    envs = UserVectorEnvs(vector_env, SEEDS)
    stored = collect(envs, STEPS)
    envs.close()
    seed_of = SEEDS if mode is AutoresetMode.DISABLED else only_first
    pause = mode is AutoresetMode.NEXT_STEP
    for row, got in enumerate(stored):
        same(got, expected(row, STEPS, ROWS, seed_of, pause))


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("copy", [True, False])
def test_no_false_and_no_lost_rows(mode, copy):
    verify(vector(SyncVectorEnv, mode, copy=copy), mode)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_environments_that_reuse_their_arrays(mode):
    # In SAME_STEP such an environment overwrites its final observation inside Gymnasium.
    verify(vector(SyncVectorEnv, mode, rude=True), mode)


@pytest.mark.processes
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_asynchronous(mode):
    verify(vector(AsyncVectorEnv, mode, context="forkserver"), mode)


def test_a_row_that_only_resets_is_no_transition():
    envs = UserVectorEnvs(vector(SyncVectorEnv, AutoresetMode.NEXT_STEP), SEEDS)
    envs.reset()
    zeros = np.zeros((ROWS, 2), np.float32)
    end, only_reset, after = (envs.step(zeros) for _ in range(3))
    assert end.last.all() and end.terminated.all() and end.valid.all()
    assert (end.observation == end.next_observation).all()  # the final one
    assert not only_reset.valid.any() and not only_reset.last.any()
    assert only_reset.observation[:, 1:3].tolist() == [[1, 0]] * ROWS  # a new episode's first
    assert after.valid.all() and after.next_observation[:, 1:3].tolist() == [[1, 1]] * ROWS
    assert envs.episodes.tolist() == [1] * ROWS


def test_a_reset_forgets_a_pending_one():
    envs = UserVectorEnvs(vector(SyncVectorEnv, AutoresetMode.NEXT_STEP), SEEDS)
    envs.reset()
    envs.step(np.zeros((ROWS, 2), np.float32))
    envs.reset()
    assert envs.step(np.zeros((ROWS, 2), np.float32)).valid.all()


@pytest.mark.parametrize("given", [None, "sometimes"])
def test_the_mode_is_never_guessed(given):
    vector_env = vector(SyncVectorEnv, AutoresetMode.NEXT_STEP)
    vector_env.metadata = {"autoreset_mode": given}
    with pytest.raises(EnvironmentError, match="autoreset_mode"):
        UserVectorEnvs(vector_env, SEEDS)


class OneSeed(VectorEnv):
    """Resets only with a single seed, promises SAME_STEP and gives no final observation."""

    num_envs = 2
    single_observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    single_action_space = gymnasium.spaces.Discrete(2)
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions):
        return np.zeros((2, 1), np.float32), np.zeros(2), actions == 1, np.zeros(2, bool), {}


def test_other_vector_environments():
    envs = UserVectorEnvs(OneSeed(), EpisodeSeeds(0, 2))
    assert envs.reset().shape == (2, 1)
    envs.step(np.array([0, 0]))
    with pytest.raises(EnvironmentError, match=r"environment 1: .*no final_obs"):
        envs.step(np.array([0, 1]))


def test_nan_names_the_row():
    class Broken(OneSeed):
        def step(self, actions):
            result = super().step(actions)
            result[0][1] = np.nan
            return result

    envs = UserVectorEnvs(Broken(), EpisodeSeeds(0, 2))
    envs.reset()
    with pytest.raises(EnvironmentError, match="environment 1: the observation is nan"):
        envs.step(np.array([0, 0]))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_absurd_numbers_are_clipped_and_counted(mode, caplog):
    class Absurd(OneSeed):
        metadata = {"autoreset_mode": mode}  # noqa: RUF012

        def step(self, actions):
            ended = np.array([False, True])
            final = np.array([None, np.array([-1e300])], object)
            return (
                np.full((2, 1), 1e300),
                np.array([1.0, -1e30]),
                ended,
                ended,
                {"final_obs": final},
            )

    envs = UserVectorEnvs(Absurd(), EpisodeSeeds(0, 2))
    envs.reset()
    step = envs.step(np.array([0, 0]))
    sign = -1 if mode is AutoresetMode.SAME_STEP else 1
    assert step.next_observation.tolist() == [[np.float32(1e15)], [np.float32(sign * 1e15)]]
    assert step.reward.tolist() == [1.0, np.float32(-1e15)]
    assert envs.faults["clipped_values"] == (4 if mode is AutoresetMode.SAME_STEP else 3)
    assert len(caplog.records) == 1


def test_open_episodes_cannot_be_brought_back():
    envs = UserVectorEnvs(OneSeed(), EpisodeSeeds(0, 2))
    assert not envs.replayable
    with pytest.raises(EnvironmentError, match="cannot be brought back: give a callable"):
        envs.replay(np.zeros(2, np.int64), [np.zeros(0, np.int64)] * 2)
