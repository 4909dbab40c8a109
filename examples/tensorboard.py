"""Log to TensorBoard and to progress.csv, and choose how often to log, evaluate and save."""

import understudy as us


def main(steps: int = 10_000) -> None:
    run = us.RunConfig(log_every=500, evaluate_every=2_000, checkpoint_every=5_000)
    agent = us.SAC("jax:Pendulum-v1", seed=0)
    # "wandb" and "mlflow" work alike; ["tensorboard", "wandb"] is both.
    agent.train(steps, run=run, run_dir="runs/tensorboard", logger="tensorboard")
    print("tensorboard --logdir runs/tensorboard")


if __name__ == "__main__":
    main()
