"""Normalize observations and rewards; the statistics are saved and exported with the agent."""

import gymnasium as gym
import numpy as np

import understudy as us


def millimeters() -> gym.Env:
    """Return a pendulum whose numbers are badly scaled."""
    env = gym.make("Pendulum-v1")
    bounds = gym.spaces.Box(-1e4, 1e4, (3,), np.float32)
    env = gym.wrappers.TransformObservation(env, lambda seen: seen * np.float32(1e3), bounds)
    return gym.wrappers.TransformReward(env, lambda reward: 100.0 * reward)


def main(steps: int = 100_000) -> None:
    agent = us.PPO(millimeters, normalize_observations=True, normalize_rewards=True, horizon=256)
    agent.train(steps)
    print(f"mean return, not normalized: {agent.evaluate(episodes=5)['mean']:.0f}")
    agent.export("policy.safetensors")  # takes the raw numbers of the environment
    agent.close()


if __name__ == "__main__":
    main()
