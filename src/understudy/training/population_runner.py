"""Where the episodes of a generation are played, one by each policy on an environment of its own:
in this process, or in others, far away."""

import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from understudy.algorithms.base import Algorithm
from understudy.envs.descriptors import Descriptor
from understudy.envs.fault_guard import Guard
from understudy.envs.make import EnvSource
from understudy.envs.seeds import EpisodeSeeds
from understudy.training.episode_runner import (
    EpisodeStep,
    EpisodeSteps,
    HostEpisodeRunner,
    Played,
    finish,
)
from understudy.types import Spec

TRIES = 3  # of an episode that faults keep cutting


@final
@dataclass(frozen=True)
class EpisodePlan:
    """What is played. It can travel: an environment is made where it is stepped."""

    algorithm: Algorithm
    source: EnvSource
    spec: Spec
    descriptor: Descriptor
    episode_length: int | None
    rows: int
    seeds: EpisodeSeeds
    workers: int
    guard: Guard

    def share(self, first: int, rows: int) -> "EpisodePlan":
        """So many rows of it, which meet the episodes that they meet in the whole."""
        return replace(self, rows=rows, seeds=replace(self.seeds, first_row=first))


class PopulationRunner(abc.ABC):
    """Plays episodes by their numbers. What becomes of one is a function of its policy, its row
    and its number alone. Abstract; the final ones are for one process and for a cluster."""

    @abc.abstractmethod
    def play(
        self,
        policies: Any,
        episode: int,
        fresh: bool = False,
        tell: Callable[[EpisodeStep], None] | None = None,
    ) -> Played:
        """The episode of that number, of every row by its own policy; `fresh` ones are others than
        those that policies are found by. Every step is told."""

    @property
    @abc.abstractmethod
    def faults(self) -> dict[str, int]:
        """What went wrong in the episodes that policies are found by and was survived, counted
        since the start."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release environments and processes. Safe to call twice."""


@final
class HostPopulationRunner(PopulationRunner):
    """The environments are this process's own."""

    def __init__(self, episode_plan: EpisodePlan):
        self._episode_plan = episode_plan
        self._runner = self._open(episode_plan.seeds)

    @cached_property
    def _fresh(self) -> HostEpisodeRunner:
        return self._open(replace(self._episode_plan.seeds, fixed=False).for_evaluation())

    def _open(self, seeds: EpisodeSeeds) -> HostEpisodeRunner:
        plan = self._episode_plan
        envs = plan.source.make_host(plan.rows, seeds, plan.workers, plan.guard, plan.descriptor)
        envs.set_action_space(plan.spec.action)
        return HostEpisodeRunner(
            plan.algorithm, envs, (plan.rows, 1), plan.descriptor, plan.episode_length
        )

    def play(
        self,
        policies: Any,
        episode: int,
        fresh: bool = False,
        tell: Callable[[EpisodeStep], None] | None = None,
    ) -> Played:
        return finish(self.begin(policies, episode, fresh), tell)

    def begin(self, policies: Any, episode: int, fresh: bool) -> EpisodeSteps:
        """As `play`, step by step."""
        runner, rows = self._fresh if fresh else self._runner, self._episode_plan.rows
        action = self._episode_plan.spec.action.stored
        nothing_done = [np.zeros((0, *action.shape), action.dtype)] * rows
        observation = runner.envs.replay(np.full(rows, episode), nothing_done)
        return runner.steps(policies, observation, TRIES, only=True)

    @property
    def faults(self) -> dict[str, int]:
        return self._runner.envs.faults

    def close(self) -> None:
        self._runner.envs.close()
        if "_fresh" in self.__dict__:
            self._fresh.envs.close()
