"""What an environment may rely on, and what it may do without harm."""

import tracemalloc
from functools import partial

import gymnasium
import numpy as np
import pytest

import understudy as us
from understudy.envs import EpisodeSeeds, SerialEnvs
from understudy.training import episode_runner as playing
from understudy.training import open_episodes
from understudy.types import EnvironmentError

pytestmark = pytest.mark.agents

CASES = 10_000


class Bounded(gymnasium.Env):
    """Keeps every action it was given."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, space, given):
        self.action_space, self.given = space, given

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.given.append(action)
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.fault(10, "every action lies inside the bounds, per dimension and asymmetric")
def test_actions_lie_inside_the_bounds():
    random, given, spaces = np.random.default_rng(0), [], []
    boxes, steps = 100, CASES // 100
    for _ in range(boxes):
        ends = random.normal(size=(2, 3)) * 10.0 ** random.uniform(-6, 30, (2, 3))
        low, high = np.sort(ends.astype(random.choice([np.float32, np.float64])), axis=0)
        spaces.append(gymnasium.spaces.Box(low, high, dtype=low.dtype.type))
        envs = SerialEnvs([partial(Bounded, spaces[-1], given)], EpisodeSeeds(0))
        envs.reset()
        for scale in random.choice([0.5, 1.0, 4.0, 1e30], steps):
            envs.step(np.float32(scale * random.uniform(-1, 1, (1, 3))))
        envs.step(-np.ones((1, 3), np.float32))
        envs.step(np.ones((1, 3), np.float32))
    assert len(given) == CASES + 2 * boxes
    for number, action in enumerate(given):
        space = spaces[number // (steps + 2)]
        assert action.dtype == np.float32
        assert (action >= space.low).all() and (action <= space.high).all()


class Spaces(gymnasium.Env):
    def __init__(self, observation, action):
        self.observation_space, self.action_space = observation, action


BOX = gymnasium.spaces.Box(-1, 1, (2,))


@pytest.mark.fault(11, "an error at construction that lists what is supported")
@pytest.mark.parametrize(
    ("algorithm", "observation", "action", "problem"),
    [
        (us.SAC, BOX, gymnasium.spaces.Box(-np.inf, np.inf, (1,)), "needs a bounded action Box"),
        (us.TD3, BOX, gymnasium.spaces.Box(0, np.inf, (1,)), "needs a bounded action Box"),
        (us.SAC, BOX, gymnasium.spaces.Text(3), "supported: Box .*, Discrete, MultiDiscrete"),
        (us.SAC, gymnasium.spaces.Tuple((BOX,)), BOX, "supported: Box"),
        (us.TD3, BOX, gymnasium.spaces.Discrete(2), "TD3 needs continuous"),
        (us.DDQN, BOX, BOX, "DDQN needs Discrete"),
    ],
)
def test_what_cannot_be_learned_is_refused_at_construction(algorithm, observation, action, problem):
    with pytest.raises(EnvironmentError, match=problem):
        algorithm(partial(Spaces, observation, action))


class Rude(gymnasium.Env):
    """Returns one and the same array at each step, and spoils the action."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self):
        self.array = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        self.array[:] = 0
        return self.array, {}

    def step(self, action):
        self.array += action
        action[:] = 77.0
        return self.array, 0.0, False, False, {}


@pytest.mark.fault(13, "arrays passed to and from an environment are copied")
def test_arrays_are_never_shared_with_an_environment():
    envs = SerialEnvs([Rude, Rude], EpisodeSeeds(0, 2))
    seen = [envs.reset()]
    action = np.float32([[0.25], [-0.5]])
    seen += [envs.step(action).next_observation for _ in range(3)]
    assert action.tolist() == [[0.25], [-0.5]]
    for time, observation in enumerate(seen):
        assert observation.tolist() == [[0.25 * time], [-0.5 * time]]


class Endless(Rude):
    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {}


@pytest.mark.fault(14, "constant memory")
def test_an_endless_episode_takes_no_memory():
    envs = SerialEnvs([Endless] * 2, EpisodeSeeds(0, 2))
    envs.reset()
    action = np.zeros((2, 1), np.float32)

    def run(steps):
        for _ in range(steps):
            envs.step(action)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = run(100)
        assert run(2_000) - before < 2_000  # less than a byte a step
    finally:
        tracemalloc.stop()


@pytest.mark.fault(14, "episode statistics are absent, not wrong")
def test_an_endless_episode_has_no_statistics(monkeypatch, caplog):
    config, told = us.A2CConfig(hidden_sizes=(8,), horizon=5), []
    agent = us.A2C(Endless, config, num_envs=1)
    monkeypatch.setattr(playing, "MOST_STEPS", 30)
    run = us.RunConfig(log_every=10, evaluate_every=0, evaluation_episodes=1)
    agent.train(40, run=run, callbacks=(lambda facts: told.append(dict(facts)),), progress=False)
    agent.close()
    assert len(told) >= 4 and "had not ended after 30 steps" in caplog.text
    for facts in told:
        values = [value for name, value in facts.items() if name.startswith("rollout/ep_")]
        assert np.isnan(np.array(values, np.float64)).all()


@pytest.mark.fault(14, "the stored actions of an open episode are limited, too")
def test_an_endless_episode_is_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr(open_episodes, "LONGEST", 3_000)
    kept, action = open_episodes.OpenActions(2), np.zeros((2, 1), np.float32)
    envs = SerialEnvs([Endless] * 2, EpisodeSeeds(0, 2))
    envs.reset()
    for step in range(10_000):
        kept.add(action, np.array([False, step % 1_000 == 999]))
    stored = [held for held in vars(kept).values() if isinstance(held, np.ndarray)]
    assert max(held.nbytes for held in stored) <= 2 * 3_000 * action.nbytes
    assert kept.state_dict(envs)["lengths"].tolist() == [-1, 0]  # the endless one cannot come back
