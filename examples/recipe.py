"""Use the settings of a paper: SimBa's residual networks and SAC, with one change."""

import understudy as us


def main(steps: int = 20_000) -> None:
    for name, recipe in us.SACConfig.recipes.items():
        print(f"{name}: {recipe.paper}")
    agent = us.SAC("Pendulum-v1", recipe="simba", critic_hidden_sizes=(64, 64), seed=0)
    print(agent.preset)  # the preset of the environment, the recipe, the change
    print(agent.config.network, agent.config.optimizer, agent.config.updates_per_step)
    print(agent.train(steps))
    agent.close()


if __name__ == "__main__":
    main()
