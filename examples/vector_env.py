"""Train on a vector environment that you have made yourself, in any mode of autoreset."""

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import understudy as us


def make() -> gym.Env:
    env = gym.make("Pendulum-v1", max_episode_steps=100)
    return gym.wrappers.TransformReward(env, lambda reward: reward / 10)  # wrappers work as usual


def main(steps: int = 20_000) -> None:
    vector = SyncVectorEnv([make] * 4, autoreset_mode=AutoresetMode.DISABLED)
    agent = us.SAC(vector, hidden_sizes=(64, 64), start_steps=300, min_buffer_size=300)
    print(agent.train(steps))  # evaluation makes environments of its own
    agent.close()
    vector.close()  # the agent does not close what it did not make


if __name__ == "__main__":
    main()
