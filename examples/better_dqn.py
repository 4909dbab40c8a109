"""Add prioritized replay, three-step returns and dueling networks to double Q-learning."""

from dataclasses import replace

import understudy as us


def main(steps: int = 30_000) -> None:
    plain = us.DDQNConfig(hidden_sizes=(64, 64), learning_rate=5e-4, epsilon_decay_steps=5_000)
    better = replace(plain, prioritized=True, n_step=3, dueling=True)
    for name, config in {"double": plain, "with all three": better}.items():
        agent = us.DDQN("jax:CartPole-v1", config, seed=0)
        agent.train(steps)
        print(f"{name}: {agent.evaluate(episodes=10)['mean']:.0f}")
    # recipe="rainbow-lite" has categorical critics as well.


if __name__ == "__main__":
    main()
