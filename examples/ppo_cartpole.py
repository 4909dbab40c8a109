"""Train PPO on a task with discrete actions."""

import understudy as us


def main(steps: int = 100_000) -> None:
    agent = us.PPO("CartPole-v1", seed=0)  # eight environments, and the preset of CartPole-v1
    print(agent.train(steps))  # steps, seconds, steps per second, evaluation mean
    print(f"mean return of 20 new episodes: {agent.evaluate(episodes=20)['mean']:.0f}")
    print(f"the action in a state: {agent.act([0.0, 0.1, 0.02, -0.1])}")  # an integer
    agent.close()


if __name__ == "__main__":
    main()
