"""Episodes that are run to be scored: of evaluations, and of quality-diversity.

Rows are policy × episode, and all episodes begin together. A row whose episode has ended is ignored
until the last one has ended: results describe one whole episode of each row. A repertoire is run as
many policies with one episode each.
"""

import abc
import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from understudy.algorithms.base import Algorithm
from understudy.envs import seeds as episode_seeds
from understudy.envs.base import HostEnvs, HostStep
from understudy.envs.descriptors import Descriptor
from understudy.envs.episode_info import EpisodeInfo
from understudy.envs.fault_guard import DEFAULT_GUARD, Guard
from understudy.envs.make import EnvSource
from understudy.envs.seeds import EpisodeSeeds
from understudy.training.actions import initial_memory, uniform_actions
from understudy.training.program_cache import shared
from understudy.training.seed_axis import EVALUATION, SELECTION, fold_in, over_seeds, seed_keys
from understudy.types import Chunk, Key, Spec, Step, Tree

MOST_STEPS = 27_000  # of an episode; Atari's half an hour, the longest limit in use
ENDLESS_STEPS = 5_000  # of one where the environment states no time limit

_log = logging.getLogger("understudy.training")


@final
@dataclass(frozen=True)
class EpisodePlan:
    """Which episodes are run, and how. It can be sent to another process."""

    algorithm: Algorithm
    spec: Spec
    seeds: EpisodeSeeds
    num_policies: int
    episodes: int = 1  # of each policy
    descriptor: Descriptor | None = None
    episode_length: int | None = None  # steps after which every episode is cut
    limited: bool = True  # whether the environments state a time limit of their own
    explore: bool = False  # draw actions from the policy, or add the algorithm's own noise
    epsilon: float = 0.0  # the share of actions that are uniformly random
    attempts: int | None = None
    """How often an episode that a fault has cut is run before its return is NaN, as it is if the
    policy gives what is no number; None: until it is complete."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_policies, self.episodes

    @property
    def draws(self) -> bool:
        """Whether actions are random."""
        return self.explore or self.epsilon > 0

    @property
    def shareable(self) -> bool:
        """Whether agents may share programs of this plan: none of it is the user's own code."""
        return self.descriptor is None or self.descriptor.shareable

    @property
    def unseeded(self) -> "EpisodePlan":
        """The same with seed 0: programs do not depend on the seed."""
        return replace(self, seeds=replace(self.seeds, seed=0, stream=episode_seeds.EVALUATION))

    def keys(self) -> Key:
        """One key for each policy."""
        stream = SELECTION if self.seeds.stream == episode_seeds.SELECTION else EVALUATION
        return seed_keys(self.seeds.seed, self.num_policies, stream)

    def share(self, first: int, count: int) -> "EpisodePlan":
        """The same episodes of `count` policies from number `first` on, where each has one."""
        return replace(self, num_policies=count, seeds=replace(self.seeds, first_row=first))

    def act_function(self) -> Callable[..., tuple[Array, Tree]]:
        """The actions of all policies, each for its own rows [policies, episodes]."""

        def act(
            policy: Any, memory: Tree, observation: Array, first: Array, key: Key
        ) -> tuple[Array, Tree]:
            action, memory, _ = self.algorithm.act(
                policy, memory, observation, first, key, self.explore
            )
            if self.epsilon == 0:
                return action, memory
            rows = len(first)
            which, what = jax.random.split(jax.random.fold_in(key, 1))
            at_random = jax.random.uniform(which, (rows,)) < self.epsilon
            at_random = at_random.reshape(rows, *[1] * (action.ndim - 1))
            return jnp.where(at_random, uniform_actions(self.spec, rows, what), action), memory

        return over_seeds(act, self.num_policies)

    def by_policy(self, results: "EpisodeResults") -> "EpisodeResults":
        """Results as NumPy arrays [policies, episodes, ...], returns in double precision."""
        results = jax.tree.map(lambda x: np.asarray(x).reshape(*self.shape, *x.shape[1:]), results)
        return results._replace(returns=results.returns.astype(np.float64))


class EpisodeResults(NamedTuple):
    """What the episode of each row came to. Arrays of JAX or of NumPy."""

    returns: Any  # [rows]
    lengths: Any  # [rows] steps
    descriptors: Any  # [rows, size]; None where behaviors are not described
    infos: Any = None  # [rows] objects, `EpisodeInfo` or None; None for native environments


EpisodeChunks = Generator[Chunk, None, EpisodeResults]  # the steps [1, rows], then the results
OnChunk = Callable[[Chunk], None]


class EpisodeRunner(abc.ABC):
    """Runs the episodes of a plan. Abstract; the final ones are for the environments of this
    process, for native environments and for a cluster. The result of an episode depends on its
    policy, its row and its number only."""

    @abc.abstractmethod
    def run(
        self, policies: Any, episode: int = 0, fresh: bool = False, on_chunk: OnChunk | None = None
    ) -> EpisodeResults:
        """Run the episode of that number in every row; `policies` have an axis of policies.

        `fresh` episodes are never those that policies are found by. `on_chunk` receives the steps
        of all rows in order; steps after the end of a row's episode are not valid."""

    @property
    def faults(self) -> dict[str, int]:
        """Faults that were survived in episodes that are not `fresh`, counted since the start."""
        return {}

    @abc.abstractmethod
    def close(self) -> None:
        """Release environments and processes. Safe to call twice."""


@final
class HostEpisodeRunner(EpisodeRunner):
    """Gymnasium environments of this process, and one program that acts for all policies."""

    def __init__(
        self, plan: EpisodePlan, source: EnvSource, workers: int = 0, guard: Guard = DEFAULT_GUARD
    ):
        self._plan, self._source, self._workers, self._guard = plan, source, workers, guard
        self._envs = self._make_envs(plan.seeds)
        self._act = _act_program(replace(plan.unseeded, descriptor=None))
        self._keys = plan.keys() if plan.draws else jnp.zeros((plan.num_policies, 2), jnp.uint32)

    @cached_property
    def _fresh_envs(self) -> HostEnvs:
        return self._make_envs(replace(self._plan.seeds, fixed=False).for_evaluation())

    def _make_envs(self, seeds: EpisodeSeeds) -> HostEnvs:
        plan, rows = self._plan, self._plan.num_policies * self._plan.episodes
        envs = self._source.make_host(rows, seeds, self._workers, self._guard, plan.descriptor)
        envs.set_action_space(plan.spec.action)
        return envs

    def run(
        self, policies: Any, episode: int = 0, fresh: bool = False, on_chunk: OnChunk | None = None
    ) -> EpisodeResults:
        chunks = self.chunks(policies, episode, fresh)
        while True:
            try:
                chunk = next(chunks)
            except StopIteration as end:
                return end.value
            if on_chunk is not None:
                on_chunk(chunk)

    def chunks(self, policies: Any, episode: int, fresh: bool) -> EpisodeChunks:
        """As `run`, step by step. Environments whose episode has ended are not stepped further,
        where they can be stepped one by one."""
        plan, envs, shape = self._plan, self._fresh_envs if fresh else self._envs, self._plan.shape
        observation, rows = envs.restart(episode), envs.num_envs
        memory = initial_memory(plan.algorithm, policies, *shape)
        limit = plan.episode_length or self._max_steps
        scores = _Scores(rows, plan.descriptor, limit, plan.attempts)
        first, keys, time = np.ones(rows, bool), self._keys, 0
        while scores.open.any():
            seen = observation.reshape(*shape, *observation.shape[1:])
            if plan.draws:
                keys, time = fold_in(self._keys, time), time + 1
            action, memory = self._act(policies, memory, seen, first.reshape(shape), keys)
            action = np.asarray(action).reshape(rows, *action.shape[2:])
            if plan.attempts is not None:
                scores.fail(np.logical_not(np.isfinite(action).reshape(rows, -1).all(axis=1)))
            counted = scores.open
            step = envs.step(action, counted) if envs.steps_rows else envs.step(action)
            last = scores.add(step, envs.take_infos())
            facts = (observation, action, step.reward, step.terminated, last, step.next_observation)
            steps: Any = Step(*(fact[None] for fact in facts))  # type: ignore
            yield Chunk(steps, (counted & step.valid)[None])  # type: ignore
            observation, first = step.observation, step.last
        if scores.cut_off.any():
            if plan.episode_length is None:
                _log.warning(
                    "%d episodes of an evaluation had not ended after %d steps: their returns are "
                    "those up to there", scores.cut_off.sum(), limit,
                )  # fmt: skip
            scores.add_infos(envs.read_open_infos(), scores.cut_off)
        return EpisodeResults(scores.returns, scores.lengths, scores.descriptors, scores.infos)

    @cached_property
    def _max_steps(self) -> int:
        """Steps after which an episode is cut; warn once where nothing else would end it."""
        if self._plan.limited:
            return MOST_STEPS
        most = min(ENDLESS_STEPS, MOST_STEPS)
        _log.warning(
            "the environment states no time limit: an episode of an evaluation is cut off after %d "
            "steps", most,
        )  # fmt: skip
        return most

    @property
    def faults(self) -> dict[str, int]:
        return self._envs.faults

    def close(self) -> None:
        self._envs.close()
        if "_fresh_envs" in self.__dict__:
            self._fresh_envs.close()


@final
class _Scores:
    """The returns, lengths and descriptors of the rows so far, and which episodes are open."""

    def __init__(self, rows: int, descriptor: Descriptor | None, limit: int, attempts: int | None):
        self.returns, self.lengths = np.zeros(rows), np.zeros(rows, np.int32)
        self.open, self.cut_off = np.ones(rows, bool), np.zeros(rows, bool)
        self.descriptors = None if descriptor is None else np.zeros((rows, descriptor.size), "f4")
        self.infos = np.full(rows, None, object)
        self._descriptor, self._limit = descriptor, limit
        self._attempts = np.full(rows, np.iinfo(np.int64).max if attempts is None else attempts)

    def add(self, step: HostStep, infos: Mapping[int, EpisodeInfo]) -> np.ndarray:
        """Add a step of all rows, and what the episodes have reported that it ended; returns
        [rows]: whether it is the last one of an episode."""
        self.add_infos(infos, self.open)
        valid, cut = self.open & step.valid, self.open & step.last & ~step.valid
        self.returns = np.where(valid, self.returns + step.reward, self.returns)
        self.lengths = self.lengths + valid
        at_limit = valid & (self.lengths >= self._limit)
        last = step.last | at_limit
        self.cut_off |= at_limit & ~step.last
        if self._descriptor is not None:
            self._describe(step.descriptor, valid)
        self._attempts[cut] -= 1
        self.returns[cut], self.lengths[cut] = 0.0, 0
        self.open = self.open & ~(last & valid)
        self.fail(cut & (self._attempts <= 0))
        return last

    def add_infos(self, infos: Mapping[int, EpisodeInfo], rows: np.ndarray) -> None:
        """Add what the episodes of these rows have reported."""
        for row, info in infos.items():
            if rows[row]:
                self.infos[row] = info

    def fail(self, rows: np.ndarray) -> None:
        """End the open episodes of these rows with a return of NaN."""
        failed = self.open & rows
        self.returns[failed] = np.nan
        self.open = self.open & ~failed

    def _describe(self, now: np.ndarray | None, valid: np.ndarray) -> None:
        assert now is not None and self._descriptor is not None and self.descriptors is not None
        if self._descriptor.over == "mean":
            # The first step replaces what an episode that was cut has left.
            share = np.float32(1) / np.maximum(self.lengths, 1)[:, None].astype(np.float32)
            now = np.where(share == 1, now, self.descriptors + (now - self.descriptors) * share)
        self.descriptors = np.where(valid[:, None], now, self.descriptors)


@shared
def _act_program(plan: EpisodePlan) -> Callable[..., tuple[Array, Tree]]:
    return jax.jit(plan.act_function())
