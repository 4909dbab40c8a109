"""A module with the interface of EnvPool 1.2, in Python: seeds at construction, the autoreset mode
NEXT_STEP, configs as named tuples, arrays that are used again."""

from collections import namedtuple
from types import ModuleType

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

DEFAULTS = {
    "num_envs": 1,
    "batch_size": 1,
    "num_threads": 0,
    "max_num_players": 1,
    "base_path": "/assets",
    "seed": 42,
    "env_seed": [],
    "gym_reset_return_info": True,
    "max_episode_steps": 5,
}
TASKS = {
    "Walk-v1": {"fall_at": 1e9, "weight": 1.0},
    "Endless-v1": {"fall_at": 1e9, "weight": 1.0, "max_episode_steps": 2**31 - 1},
    "Game-v5": {"stack_num": 4, "gray_scale": True, "episodic_life": False, "reward_clip": False},
}


class FakePool(VectorEnv):
    """Row i walks from a random place by its actions; it falls (terminates) beyond `fall_at`. The
    time limit truncates. A game shows its step count as stacked frames."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    made = []  # noqa: RUF012

    def __init__(self, task, config):
        self.task, self.config, self.num_envs = task, config, config["num_envs"]
        self.action_space = Discrete(3) if task == "Game-v5" else Box(-2.0, 2.0, (1,), np.float64)
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float64)
        if task == "Game-v5":
            self.observation_space = Box(0, 255, (config["stack_num"], 8, 8), np.uint8)
        self.generators = [np.random.default_rng(seed) for seed in config["env_seed"]]
        self.place, self.steps = np.zeros((2, self.num_envs))
        self.over = np.ones(self.num_envs, bool)
        self.closed = False
        FakePool.made.append(self)

    @property
    def observation(self):
        if self.task == "Game-v5":
            age = np.arange(self.config["stack_num"])[::-1]
            frames = np.maximum(self.steps[:, None] - age, 0).astype(np.uint8)
            return np.broadcast_to(frames[:, :, None, None], (*frames.shape, 8, 8))
        return np.stack([self.place, self.steps], axis=1)

    def reset(self, env_id=None, *, seed=None, options=None):
        assert seed is None, "EnvPool warns: seeds are fixed when the environment is created"
        for row in range(self.num_envs):
            self._begin(row)
        return self.observation, {"elapsed_step": self.steps.copy()}

    def _begin(self, row):
        self.place[row] = self.generators[row].normal()
        self.steps[row], self.over[row] = 0, False

    def step(self, action):
        assert len(action) == self.num_envs and not self.closed
        reward = np.zeros(self.num_envs, np.float32)
        for row in range(self.num_envs):
            if self.over[row]:
                self._begin(row)
                continue
            self.place[row] += float(np.ravel(action[row])[0])
            self.steps[row] += 1
            reward[row] = self.config.get("weight", 5.0)
        if self.config.get("reward_clip"):
            reward = np.sign(reward)
        fallen = self.place > self.config.get("fall_at", 1e9)
        truncated = self.steps >= self.config["max_episode_steps"]
        self.over = fallen | truncated
        info = {"elapsed_step": self.steps.copy(), "env_id": np.arange(self.num_envs)}
        info |= {"distance": np.abs(self.place), "players": {"env_id": np.arange(self.num_envs)}}
        return self.observation, reward, fallen & ~truncated, truncated, info

    def close(self, **options):
        self.closed = True


def make_fake():
    module = ModuleType("envpool")

    def config_of(name, **args):
        known = DEFAULTS | TASKS[name]
        return namedtuple("Config", known)(**(known | args))

    def make_gymnasium(name, num_envs=1, seed=42, **args):
        assert all(-(2**31) <= one < 2**31 for one in seed) and len(seed) == num_envs
        config = config_of(name, num_envs=num_envs, env_seed=list(seed), **args)
        return FakePool(name, config._asdict())

    class Spec:
        def __init__(self, name):
            self.config = config_of(name)

    module.list_all_envs = lambda: list(TASKS)
    module.make_gymnasium, module.make_spec = make_gymnasium, Spec
    return module
