"""A trainer that only counts, and runs of it."""

from functools import partial
from types import SimpleNamespace

import numpy as np

from understudy.agent.training import TrainableAgent
from understudy.algorithms import find
from understudy.runs.callbacks import Callbacks, check_callbacks
from understudy.runs.config import RunConfig
from understudy.runs.run import Run
from understudy.training.episode_runner import EpisodeResults
from understudy.training.open_episodes import EndedEpisode
from understudy.training.snapshot import Position
from understudy.training.trainer import Trainer, TrainingSetup
from understudy.types import ArraySpec, Continuous, Spec

SPEC = Spec(ArraySpec((3,)), Continuous((-2.0,), (2.0,), (1,)))


class Counting(Trainer):
    """Steps and nothing else. Member m ends an episode of return 10 m + 1 at every call."""

    def __init__(self, num_envs=1, num_seeds=1, iterations=0, metrics=None, ended=True):
        self.setup = TrainingSetup(find("sac")(), SPEC, 0, num_seeds, num_envs)
        self.position = Position(iterations, 2 * iterations, logged=iterations)
        self.advanced, self.told = [], dict(metrics or {})
        self.ended, self.fresh = ended, []

    def advance(self, iterations):
        assert iterations > 0
        self.advanced.append(iterations)
        self.position.iterations += iterations
        if self.ended:
            self.fresh += [EndedEpisode(0, float(self.steps), iterations, 0, self.steps, 0.0)]
        self.position.updates += 2 * iterations

    def new_episodes(self):
        ended, self.fresh = self.fresh, []
        return ended

    def episodes(self):
        members = range(self.setup.num_seeds)
        ended = [EndedEpisode(m, 10.0 * m + 1, 5 + m, 0, self.steps, 0.0) for m in members]
        return ended if self.ended else []

    def metrics(self):
        return self.told

    def diverged(self):
        return np.zeros(self.setup.num_seeds, bool)

    def block_until_ready(self):
        pass

    def close(self):
        pass

    def _acting_state_dict(self):
        return {}

    def _load_acting(self, acting):
        pass


def no_arrays(trainer, experience):
    return {"learner": {"steps": np.array(trainer.steps)}}, {}


def run(trainer, steps, callbacks=(), run_dir=None, owner=None, **settings):
    """The summary, the steps of all rows and the steps of those with an evaluation."""
    num_seeds, start = trainer.setup.num_seeds, trainer.steps
    evaluated = []

    def play():
        evaluated.append(trainer.steps)
        returns = np.arange(4.0 * num_seeds).reshape(num_seeds, 4)
        return EpisodeResults(returns, np.ones_like(returns), None)

    trainable = TrainableAgent(trainer, play, partial(no_arrays, trainer), None)
    callbacks = Callbacks(check_callbacks(callbacks))
    owner = SimpleNamespace(log=callbacks.log) if owner is None else owner
    about = ({"run": "this one"}, "a title", callbacks, owner)
    run = Run(trainable, RunConfig(**settings), start + steps, *about)
    summary = trainable.summary(start, 0.0, run.execute(run_dir))
    rows = [row["time/total_steps"] for row in summary.history]
    assert evaluated == [
        row["time/total_steps"] for row in summary.history if "eval/mean_reward" in row
    ]
    return summary, rows, evaluated
