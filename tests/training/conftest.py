"""Small trainers."""

import pytest

from understudy.algorithms import find
from understudy.envs.make import resolve
from understudy.envs.seeds import EpisodeSeeds
from understudy.training.device_loop import DeviceTrainer
from understudy.training.loop import HostTrainer
from understudy.training.trainer import TrainingSetup

SMALL = dict(hidden_sizes=(8,), batch_size=16, buffer_size=512, start_steps=20, min_buffer_size=20)


def build_trainer(algorithm, env, *, seed=0, num_seeds=1, num_envs=1, workers=0, **settings):
    """A trainer of a small agent, on the loop that the environment belongs to."""
    cls = find(algorithm)
    learner = cls(cls.config_class(**(SMALL | settings)))
    source = resolve(env, num_envs)
    setup = TrainingSetup(learner, source.spec, seed, num_seeds, num_envs)
    if isinstance(env, str) and env.startswith("jax:"):
        return DeviceTrainer(setup, source)
    seeds = EpisodeSeeds(seed, num_envs, num_seeds)
    return HostTrainer(setup, source.make_host(num_seeds * num_envs, seeds, workers))


def _make_and_close():
    made = []

    def make(*arguments, **settings):
        made.append(build_trainer(*arguments, **settings))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


@pytest.fixture
def make_trainer():
    yield from _make_and_close()


@pytest.fixture(scope="module")
def make_shared_trainer():
    """For trainers that several tests of a file read."""
    yield from _make_and_close()
