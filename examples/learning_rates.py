"""Compare learning rates, each with several seeds, in one program."""

import understudy as us
from understudy.sweep import Range, sweep


def main(steps: int = 10_000) -> None:
    config = us.SACConfig(hidden_sizes=(64, 64), start_steps=500, min_buffer_size=500)
    vary = {"learning_rate": Range(1e-4, 1e-2, log=True)}
    # Twelve agents: four learning rates, three seeds of each.
    result = sweep(
        "sac", "jax:Pendulum-v1", vary, members=12, repeats=3, steps=steps, config=config
    )
    print(result.table())  # the best first
    print(result.command())  # trains the best setting again


if __name__ == "__main__":
    main()
