"""Learn from a dict: a camera image has an encoder, numbers are concatenated with its features."""

import gymnasium as gym
import numpy as np

import understudy as us


class Catch(gym.Env):
    """Move a plate below a falling ball; the camera sees the ball, the plate is a number."""

    observation_space = gym.spaces.Dict(
        camera=gym.spaces.Box(0, 255, (12, 12, 1), np.uint8),
        plate=gym.spaces.Box(0, 1, (1,), np.float32),
    )
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row, self.plate, self.ball = 0, 6, int(self.np_random.integers(12))
        return self.look(), {}

    def step(self, action):
        self.row, self.plate = self.row + 1, int(np.clip(self.plate + action - 1, 0, 11))
        return self.look(), -abs(self.plate - self.ball) / 12, self.row == 11, False, {}

    def look(self):
        camera = np.zeros((12, 12, 1), np.uint8)
        camera[self.row, self.ball] = 255
        return {"camera": camera, "plate": np.array([self.plate / 11], np.float32)}


def main(steps: int = 10_000) -> None:
    agent = us.DDQN(Catch, encoder="small", buffer_size=10_000, min_buffer_size=200)
    print(agent.train(steps), agent.act(Catch().reset(seed=0)[0]))


if __name__ == "__main__":
    main()
