"""Illumination of Gymnasium environments: they step, each with a policy of its own, while the steps
flow into replay."""

from functools import partial
from typing import Any, final

import jax
import numpy as np
from jaxtyping import Array, Bool

from understudy.engine.feeding import add
from understudy.engine.playing import HostStage, Played, Told
from understudy.envs.base import HostEnvs
from understudy.envs.guard import STANDARD, Guard
from understudy.envs.make import EnvSource
from understudy.envs.seeds import EpisodeSeeds
from understudy.experience import Ring
from understudy.qd.illuminate import Again, Generations, Illuminator, Plan, acting
from understudy.qd.repertoire import policies_in
from understudy.types import Transition, Tree

TRIES = 3  # of an evaluation that faults keep cutting
STEPS_AT_ONCE = 100  # that go to replay


@final
class HostIlluminator(Illuminator):
    """Gymnasium environments, one for each policy of a generation."""

    def __init__(self, plan: Plan, source: EnvSource, workers: int = 0, guard: Guard = STANDARD):
        self.generations = Generations(plan)
        size, fixed = self.generations.size, plan.config.starts == "fixed"
        seeds = EpisodeSeeds(plan.seed, size, fixed=fixed)
        make = partial(source.make_host, size, workers=workers, guard=guard)
        self._make = partial(make, descriptor=plan.descriptor)
        self._stage = self._stage_of(self._make(seeds))
        self._others: HostStage | None = None  # for episodes that no policy has met
        self._other_seeds = EpisodeSeeds(plan.seed, size).for_evaluation()
        self.state = self.generations.begin()
        self._first = jax.jit(self.generations.first)
        self._ask = jax.jit(self.generations.ask)
        self._take = jax.jit(self.generations.take, donate_argnums=(0, 3))
        self._add = jax.jit(_add_all, donate_argnums=0)

    def _stage_of(self, envs: HostEnvs) -> HostStage:
        plan = self.generations.plan
        envs.speak(plan.spec.action)
        size, length = plan.config.generation_size, plan.config.episode_length
        return HostStage(plan.td3, envs, size, 1, plan.descriptor, length)

    def advance(self, generations: int) -> None:
        for _ in range(generations):
            state = self.state
            generation = int(state.generation)
            policies = self._ask(state) if generation else self._first(state)
            # The reel takes replay over, and gives it back with the new steps in it.
            reel = _Reel(self._add, state.experience)
            self.state = state._replace(experience=None)
            try:
                played = self._play(self._stage, policies, generation, reel)
            except BaseException:
                self.state = state._replace(experience=reel.experience)
                raise
            self.state = self._take(self.state, policies, played, reel.finish())

    def _play(
        self, stage: HostStage, policies: Tree, episode: int, reel: "_Reel | None" = None
    ) -> Played:
        """Every environment's episode of that number."""
        size, action = self.generations.size, self.generations.plan.spec.action.stored
        nothing_done = [np.zeros((0, *action.shape), action.dtype)] * size
        observation = stage.envs.replay(np.full(size, episode), nothing_done)
        tell = None if reel is None else reel.tell
        played = stage.play(acting(policies), observation, tell, TRIES, only=True)
        return played._replace(total=np.asarray(played.total, np.float32))

    def replay(self, cells: np.ndarray) -> Again:
        size, repertoire, parts = self.generations.size, self.state.repertoire, []
        for cell, born in zip(cells, np.asarray(repertoire.born)[cells], strict=True):
            generation, row = divmod(int(born), size)
            policies = policies_in(repertoire, np.full(size, cell))
            played = self._play(self._stage, policies, generation)
            parts.append((played.total[row, None], played.descriptor[row, None]))
        return Again(*(np.stack(part) for part in zip(*parts, strict=True)))

    def reevaluate(self, cells: np.ndarray, episodes: int) -> Again:
        if self._others is None:
            self._others = self._stage_of(self._make(self._other_seeds))
        size, count, parts = self.generations.size, len(cells), []
        for begin in range(0, count, size):
            rows = np.arange(begin, begin + size) % count
            policies = policies_in(self.state.repertoire, cells[rows])
            # Chunks meet other episodes, too: a number for every chunk and episode.
            numbers = range(begin // size * episodes, (begin // size + 1) * episodes)
            played = [self._play(self._others, policies, number) for number in numbers]
            parts.append([np.stack(one, axis=1) for one in zip(*played, strict=True)])
        fitness, _, descriptor = (np.concatenate(part)[:count] for part in zip(*parts, strict=True))
        return Again(fitness, descriptor)

    @property
    def faults(self) -> dict[str, int]:
        return self._stage.envs.faults

    def close(self) -> None:
        for stage in (self._stage, self._others):
            if stage is not None:
                stage.envs.close()


@final
class _Reel:
    """Carries steps from the host to replay, some at a time, while the environments go on."""

    def __init__(self, add: Any, experience: Ring | None):
        self._add, self.experience = add, experience
        self._told: list[Told] = []

    def tell(self, told: Told) -> None:
        if self.experience is not None:
            self._told.append(told)
            if len(self._told) == STEPS_AT_ONCE:
                self._hand_over()

    def finish(self) -> Ring | None:
        """Replay with all steps in it."""
        if self._told:
            idle = self._told[-1]._replace(valid=np.zeros_like(self._told[-1].valid))
            # Nothing happens in these: the program is one for a fixed number of steps.
            still = idle.step._replace(last=np.zeros_like(idle.step.last))
            self._told += [Told(still, idle.valid)] * (STEPS_AT_ONCE - len(self._told))
            self._hand_over()
        return self.experience

    def _hand_over(self) -> None:
        steps, valid = jax.tree.map(lambda *rows: np.stack(rows), *self._told)
        self.experience = self._add(self.experience, steps, valid)
        self._told = []


def _add_all(experience: Ring, steps: Transition, valid: Bool[Array, "time lanes"]) -> Ring:
    def one(experience: Ring, now: tuple[Transition, Array]) -> tuple[Any, None]:
        return add(experience, *now), None

    return jax.lax.scan(one, experience, (steps, valid))[0]
