from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from tests.envs.scripted import Faulty, Pixels, Scripted, collect, expected, same
from understudy.envs import EpisodeSeeds, SerialEnvs
from understudy.types import EnvironmentError

STEPS = 40


@pytest.mark.parametrize("rude", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_no_false_and_no_lost_rows(rows, rude):
    seeds = EpisodeSeeds(7, rows)
    envs = SerialEnvs([partial(Scripted, row, rude) for row in range(rows)], seeds)
    for row, got in enumerate(collect(envs, STEPS)):
        same(got, expected(row, STEPS, rows, seeds))
    envs.close()


def test_steps_are_independent_of_later_ones():
    envs = SerialEnvs([partial(Scripted, 0, True)], EpisodeSeeds(0))
    first = envs.reset()
    kept = first.copy()
    steps = [envs.step(np.zeros((1, 2), np.float32)) for _ in range(5)]
    copies = [[array.copy() for array in step[:-1]] for step in steps]
    envs.step(np.zeros((1, 2), np.float32))
    assert (first == kept).all()
    for step, copied in zip(steps, copies, strict=True):
        for array, wanted in zip(step[:-1], copied, strict=True):
            assert (array == wanted).all()


def test_the_callers_action_is_never_touched():
    envs = SerialEnvs([partial(Scripted, 0, True)], EpisodeSeeds(0))
    envs.reset()
    action = np.float32([[0.25, -0.5]])
    envs.step(action)
    assert action.tolist() == [[0.25, -0.5]]


def test_members_meet_the_episodes_of_their_own_seeds():
    many = EpisodeSeeds(3, envs_per_seed=2, num_seeds=3)
    for member in range(3):
        alone = EpisodeSeeds(3 + member, envs_per_seed=2)
        for env in range(2):
            for episode in range(4):
                assert many(member * 2 + env, episode) == alone(env, episode)
    every = [many(row, episode) for row in range(6) for episode in range(4)]
    assert len(set(every)) == len(every)
    assert not set(every) & {many.for_evaluation()(row, 0) for row in range(6)}


def test_bytes_stay_bytes_and_choices_get_their_start():
    envs = SerialEnvs([Pixels, Pixels], EpisodeSeeds(1, 2))
    assert envs.reset().dtype == np.uint8
    step = envs.step(np.array([0, 2]))
    assert step.observation.dtype == np.uint8
    assert step.observation[:, 0, 0, 0].tolist() == [5, 7]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"environment 1: step\(\) raised ZeroDivisionError.*last action"),
        ("observation", r"environment 1: the observation is nan at index \[2\].*last action"),
        ("reward", r"environment 1: the reward is inf .*last action"),
        ("shape", r"environment 1: expected the observation to have shape \(4,\), got \(3,\)"),
        ("dtype", r"environment 1: expected the observation to have dtype float32, got complex128"),
        ("ragged", r"environment 1: the observation is no array: .*last action"),
        ("constructor", r"environment 1: the constructor raised RuntimeError: no such robot"),
    ],
)
def test_faults_name_the_environment(fault, message):
    good = Scripted()
    with pytest.raises(EnvironmentError, match=message):
        envs = SerialEnvs([lambda: good, partial(Faulty, fault, 1)], EpisodeSeeds(0, 2))
        collect(envs, STEPS)
    assert good.closed == (fault == "constructor")


def test_environments_must_look_alike():
    with pytest.raises(EnvironmentError, match="environment 1 differs"):
        SerialEnvs([Scripted, Pixels], EpisodeSeeds(0, 2))


def test_replay_returns_to_the_middle_of_episodes():
    seeds = EpisodeSeeds(7)
    envs = SerialEnvs([Scripted], seeds)
    envs.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (3, 1, 2)).astype(np.float32)
    for action in actions:  # episode 0 has one step: two steps of episode 1 are open
        step = envs.step(action)
    assert envs.episodes.tolist() == [1]

    class LaterScripted(Scripted):
        def __init__(self):
            super().__init__()
            self.episode = 0

    other = SerialEnvs([LaterScripted], seeds)
    back = other.replay(np.array([1]), [actions[1:, 0]])
    assert (back == step.observation).all()
    assert other.episodes.tolist() == [1]
    after, wanted = other.step(actions[0]), envs.step(actions[0])
    assert all((one == two).all() for one, two in zip(after[:-1], wanted[:-1], strict=True))


def test_closing_twice_is_safe_and_spares_what_is_not_ours():
    for owned in (True, False):
        env = Scripted()
        envs = SerialEnvs([lambda env=env: env], EpisodeSeeds(0), owned=owned)
        envs.close()
        envs.close()
        assert env.closed == owned


def test_scalar_observations():
    class Scalar(Scripted):
        observation_space = spaces.Box(-9, 9, (), np.float32)

        def _observe(self):
            return np.float32(self.time)

    envs = SerialEnvs([Scalar, Scalar], EpisodeSeeds(0, 2))
    assert envs.reset().shape == (2,)
    assert envs.step(np.zeros((2, 2), np.float32)).next_observation.tolist() == [1, 1]


def test_a_failed_environment_is_not_blamed_for_its_step_before():
    class Late(Scripted):
        """Absurd at one step, and gone at the next."""

        def __init__(self, wait):
            super().__init__()
            self.wait = wait

        def step(self, action):
            self.wait -= 1
            if self.wait < 0:
                raise RuntimeError("gone")
            observation, reward, *_ = super().step(action)
            return np.where(self.wait == 0, 1e20, observation), reward, False, False, {}

    first, second = Late(1), Late(2)
    envs = SerialEnvs([lambda: first, lambda: second], EpisodeSeeds(0, 2))
    envs.reset()
    first.episode = second.episode = 1  # three steps long
    for _ in range(2):
        step = envs.step(np.zeros((2, 2), np.float32))
    assert step.valid.tolist() == [False, True]
    assert envs.faults["clipped_values"] == 8  # four numbers of each
