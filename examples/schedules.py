"""Change settings during training: two schedules, a function of the step, and `set`."""

import math

import understudy as us


def main(steps: int = 20_000) -> None:
    agent = us.TD3("jax:Pendulum-v1", seed=0)
    schedules = {
        "learning_rate": us.cosine(1e-3, 1e-5),  # over the steps of this training
        "exploration_noise": us.linear(0.3, 0.05),
        "tau": lambda step: 0.005 * (1.5 + math.cos(step / 1_000)),  # any function
    }
    print(agent.train(steps, schedules=schedules))
    agent.set(learning_rate=3e-4)  # ends the schedule of this setting
    print(agent.train(steps))


if __name__ == "__main__":
    main()
