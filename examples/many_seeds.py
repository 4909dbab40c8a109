"""Train several seeds of TD3 in one program, on Gymnasium environments."""

import understudy as us


def main(steps: int = 10_000, num_seeds: int = 3) -> None:
    agents = us.TD3("Pendulum-v1", seed=0, num_seeds=num_seeds)
    agents.train(steps)

    result = agents.evaluate(episodes=5)
    for seed, returns in enumerate(result["returns"]):
        print(f"seed {seed}: {sum(returns) / len(returns):8.1f}")
    low, high = result["ci95"]  # bootstrapped over seeds, not over episodes
    print(f"mean {result['mean']:.1f}, 95 % interval {low:.1f} … {high:.1f}")
    print(f"the best seed: {agents.best}")
    agents.close()


if __name__ == "__main__":
    main()
