"""Begin with a light pendulum, and raise its gravity whenever the returns are good enough."""

import understudy as us


def main(steps: int = 20_000) -> None:
    agent = us.SAC("Pendulum-v1", seed=0)
    gravity = us.callbacks.Curriculum("g", [2.0, 5.0, 10.0], threshold=-200, window=10)
    print(agent.train(steps, callbacks=gravity))  # evaluations keep Gymnasium's gravity, 10
    print(f"level {gravity.level}, gravity of training {agent.envs.get_attr('g')}")
    agent.close()


if __name__ == "__main__":
    main()
