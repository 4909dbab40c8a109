"""Train SAC on Pendulum-v1, load it again and play an episode."""

import tempfile

import gymnasium as gym

import understudy as us


def main(steps: int = 10_000) -> None:
    directory = tempfile.mkdtemp(prefix="understudy-")
    agent = us.SAC("Pendulum-v1", seed=0)
    print(agent.train(steps, run_dir=directory))

    agent = us.load(directory)
    env = gym.make("Pendulum-v1")
    observation, _ = env.reset(seed=0)
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        total, over = total + float(reward), terminated or truncated
    print(f"one episode: {total:.1f}; log, curve and checkpoints: {directory}")
    env.close()
    agent.close()


if __name__ == "__main__":
    main()
