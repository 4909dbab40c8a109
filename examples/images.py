"""Train DDQN on images: MinAtar's Breakout, which runs in the same program as the agent."""

import understudy as us


def main(steps: int = 200_000) -> None:
    agent = us.DDQN("jax:MinAtar-Breakout-v1", seed=0, num_envs=8, buffer_size=50_000)
    print(agent.spec.observation.shape, agent.config.encoder)  # (10, 10, 4), and an encoder for it
    print(agent.train(steps))
    print(f"mean score: {agent.evaluate(episodes=10)['mean']:.1f}")


if __name__ == "__main__":
    main()
