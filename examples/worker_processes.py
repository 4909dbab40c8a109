"""Step slow environments in processes of their own, and survive one that hangs or crashes."""

import understudy as us


def main(steps: int = 20_000) -> None:
    guard = us.Guard(step_timeout=20.0, non_finite="drop")  # see docs/environments.md
    agent = us.SAC("Pendulum-v1", seed=0, num_envs=4, env_workers=2, guard=guard)
    print(agent.train(steps))
    agent.close()  # ends the processes


if __name__ == "__main__":
    main()
