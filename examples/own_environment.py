"""Check your own Gymnasium environment, then train on it."""

import gymnasium as gym
import numpy as np

import understudy as us
from understudy.envs import check


class Target(gym.Env):
    """Reach a point on a line; leaving [-2, 2] ends the task, 30 steps end the episode."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-0.5, 0.5, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random
        self.place, self.goal = self.np_random.uniform(-1, 1, 2)
        return np.array([self.place, self.goal], np.float32), {}

    def step(self, action):
        self.place += float(action[0])
        seen = np.array([self.place, self.goal], np.float32)
        return seen, -abs(self.place - self.goal), abs(self.place) > 2, False, {}


def main(steps: int = 2_000) -> None:
    def make() -> gym.Env:
        return gym.wrappers.TimeLimit(Target(), 30)

    print(check(make))
    agent = us.TD3(make, hidden_sizes=(32, 32), start_steps=300, min_buffer_size=300)
    print(agent.train(steps))
    agent.close()


if __name__ == "__main__":
    main()
