"""Measure the cost of a checkpoint: SAC on HalfCheetah-v5 with a full buffer of a million.

    python benchmarks/saving.py [--rounds 5] [--steps 400]

Slices of training with and without one checkpoint alternate. The difference is the cost of a
checkpoint, including copying and writing in the background. It is compared with the time of 50,000
steps.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from host_parts import begin, settle

import understudy as us
from understudy.runs import checkpoint
from understudy.runs.run_directory import BackgroundWriter

INTERVAL = 50_000


def full(ring):
    """The ring as it looks when everything in it has been written to."""
    slots = ring.storage.reward.shape[2]
    noise = jax.tree.map(
        lambda x: x if x.dtype == bool else jax.random.normal(jax.random.PRNGKey(0), x.shape),
        ring.storage,
    )
    return ring._replace(storage=noise, stored=jnp.full_like(ring.stored, slots - 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400, help="of one slice")
    options = parser.parse_args()
    config = us.SACConfig(start_steps=100, min_buffer_size=100)
    agent = us.SAC("HalfCheetah-v5", config)
    trainer = begin(agent)
    trainer.advance(200)
    trainer.experience = full(trainer.experience)
    trainer.advance(200)

    copying, plain, saving, sizes = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2 * options.rounds):
            settle(trainer)
            start = time.perf_counter()
            saver = BackgroundWriter()
            if number % 2:
                groups, manifest = agent.capture(True)
                copying.append(time.perf_counter() - start)
                place = Path(folder) / "c"
                saver.submit("c", lambda p=place, g=groups, m=manifest: checkpoint.write(p, g, m))
                del groups
            trainer.advance(options.steps)
            settle(trainer)
            seconds = time.perf_counter() - start
            saver.close()
            late = time.perf_counter() - start - seconds  # writing that outlasted the slice
            (saving if number % 2 else plain).append(seconds + (late if number % 2 else 0.0))
            if number % 2:
                sizes.append(sum(file.stat().st_size for file in place.iterdir()))
            print(f"slice {number}: {seconds:.2f} s {'with a checkpoint' if number % 2 else ''}")
    base, with_one = statistics.median(plain), statistics.median(saving)
    rate = options.steps / base
    cost, interval = with_one - base, INTERVAL / rate
    print(f"""
| | |
|---|---|
| training | {rate:,.0f} steps/s |
| a checkpoint | {sizes[-1] / 1e6:,.0f} MB |
| copied in | {statistics.median(copying):.3f} s |
| costs, all in all | {cost:.2f} s ({min(saving) - base:.2f} to {max(saving) - base:.2f}) |
| of {INTERVAL:,} steps ({interval:,.0f} s) | {100 * cost / interval:.2f} % |""")


if __name__ == "__main__":
    main()
