"""Stop a run, load it from its directory and continue it: every bit is that of one long run."""

import tempfile
from pathlib import Path

import jax
import numpy as np

import understudy as us


def main(steps: int = 10_000) -> None:
    first, second, runs = steps // 2, steps - steps // 2, Path(tempfile.mkdtemp())
    config = us.TD3Config(hidden_sizes=(32, 32), start_steps=200, min_buffer_size=200)

    whole = us.TD3("jax:Pendulum-v1", config, seed=0)
    whole.train(first)
    whole.train(second)

    us.TD3("jax:Pendulum-v1", config, seed=0).train(first, run_dir=runs / "part")
    resumed = us.load(
        runs / "part"
    )  # the newest checkpoint: networks, optimizers, replay, episodes
    resumed.train(second, run_dir=runs / "part")  # the log continues, too

    pairs = zip(*map(jax.tree.leaves, (whole.state, resumed.state)), strict=True)
    print(f"equal: {all(np.array_equal(a, b) for a, b in pairs)}, at step {resumed.steps}")


if __name__ == "__main__":
    main()
