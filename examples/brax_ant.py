"""Train PPO on an ant of Brax: physics, policy and updates are one program on the device."""

import understudy as us


def main(steps: int = 30_000_000) -> None:
    num_envs = min(2_048, steps // 100)
    agent = us.PPO("brax:ant", seed=0, num_envs=num_envs)  # with the preset of Brax
    print(agent.train(steps))  # for a GPU: a CPU takes hours
    agent.export("ant.safetensors")


if __name__ == "__main__":
    main()
