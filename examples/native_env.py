"""Train in the device loop: environment, replay and updates in one compiled scan."""

import understudy as us
from understudy.envs.native import Pendulum


def main(steps: int = 10_000, num_seeds: int = 2) -> None:
    config = us.SACConfig.preset("Pendulum-v1")
    # "jax:Pendulum-v1" works too; an object can have other parameters, here the gravity.
    agents = us.SAC(Pendulum(gravity=12.0), config, num_seeds=num_seeds)
    print(agents.train(steps))
    print(f"IQM over all seeds: {agents.evaluate(episodes=10)['iqm']:.1f}")


if __name__ == "__main__":
    main()
