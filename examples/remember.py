"""Train an agent with memory on a pendulum whose velocity is hidden, then play an episode."""

import gymnasium as gym

import understudy as us


def main(steps: int = 20_000) -> None:
    config = us.SACConfig(
        memory="gru",
        memory_size=32,
        hidden_sizes=(64,),
        batch_size=16,  # sequences
        sequence_length=16,  # steps
        start_steps=500,
        min_buffer_size=500,
    )
    agent = us.SAC("jax:Pendulum-P-v1", config)
    print(agent.train(steps, progress=False))

    env = gym.make("Pendulum-v1")
    observation, _ = env.reset(seed=0)
    memory, total, over = None, 0.0, False
    while not over:
        action, memory = agent.act(observation[:2], memory)  # pass the memory again
        observation, reward, _, over, _ = env.step(action)
        total += float(reward)
    print(f"an episode with return {total:.0f}")


if __name__ == "__main__":
    main()
