"""Train until the evaluations stop improving, or until they are good enough."""

import understudy as us


def main(steps: int = 50_000) -> None:
    agent = us.SAC("Pendulum-v1", seed=0)
    stops = [us.callbacks.EarlyStopping(patience=5), us.callbacks.StopAtReturn(-150)]
    run = us.RunConfig(evaluate_every=1_000)
    print(agent.train(steps, run=run, callbacks=stops))
    agent.close()


if __name__ == "__main__":
    main()
