"""Train PPO on Atari's Pong, with the preprocessing of the papers and sticky actions."""

import understudy as us


def main(steps: int = 10_000_000) -> None:
    # 84 × 84 gray pixels, 4 frames per action, up to 30 no-ops; the preset stacks four frames.
    sticky = {"repeat_action_probability": 0.25}
    agent = us.PPO("atari:Pong", seed=0, env_args=sticky)
    print(agent.preset, agent.spec.observation.shape)
    run = us.RunConfig(evaluation_episodes=1)  # they count points; training clips rewards
    print(agent.train(steps, run=run))
    agent.close()


if __name__ == "__main__":
    main()
