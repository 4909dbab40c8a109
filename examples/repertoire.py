"""Find many different behaviors, then take the policy for a behavior that you choose."""

import understudy as us


def main(steps: int = 20_000) -> None:
    config = us.PGAMEConfig(
        generation_size=32, cells=256, hidden_sizes=(32,), critic_steps=20, policy_steps=10
    )
    maze = us.PGAME("jax:PointNavigation-v0", config, seed=0)
    print(maze.illuminate(steps).metrics)  # QD-score, coverage, best fitness

    agent = maze.repertoire.select([0.1, 0.9])  # the policy that ends nearest to this position
    print(agent.evaluate(episodes=5, descriptor="position")["descriptor"])
    maze.repertoire.draw("map.png", "A maze")
    agent.export("corner.safetensors")  # an agent like any other


if __name__ == "__main__":
    main()
