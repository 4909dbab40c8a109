"""Train one learner by several processes. This is one of them: INDEX PORT FILE."""

import sys

import jax
import numpy as np

from tests.training.sharding_cases import CHUNKS, REPLAY, learned, trainer_of
from understudy.training.devices import join_hosts

RUNS = [
    dict(name="sac", env="jax:Pendulum-v1", **REPLAY),
    dict(name="ddqn", env="CartPole-v1", **REPLAY, **CHUNKS),
]
STEPS = 20


def results(devices):
    """What each of the runs has learned, also across a snapshot."""
    for settings in RUNS:
        trainer, resumed = (trainer_of(**settings, devices=devices) for _ in range(2))
        trainer.advance(STEPS)
        resumed.restore(trainer.snapshot())
        resumed.advance(STEPS)
        assert resumed.metrics()
        yield from learned(resumed)
        for each in (trainer, resumed):
            each.close()


if __name__ == "__main__":
    index, port, file = sys.argv[1:]
    join_hosts(f"127.0.0.1:{port}", 2, int(index))
    np.savez(file, *results(jax.device_count()))
