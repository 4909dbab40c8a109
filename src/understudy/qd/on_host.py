"""Illumination of Gymnasium environments: they step, each with a policy of its own, while the steps
flow into replay."""

from collections.abc import Callable
from typing import Any, final

import jax
import numpy as np
from jaxtyping import Array, Bool

from understudy.buffers import Buffer
from understudy.envs.fault_guard import DEFAULT_GUARD, Guard
from understudy.envs.make import EnvSource
from understudy.envs.seeds import EpisodeSeeds
from understudy.qd.map_elites import Again, Generations, Illuminator, Plan, acting
from understudy.qd.repertoire import policies_in
from understudy.training.episode_runner import EpisodeStep, Played
from understudy.training.population_runner import (
    EpisodePlan,
    HostPopulationRunner,
    PopulationRunner,
)
from understudy.training.program_cache import shared
from understudy.types import Chunk, Step, Tree

STEPS_AT_ONCE = 100  # that go to replay, if it holds more


@final
class HostIlluminator(Illuminator):
    """Gymnasium environments, one for each policy of a generation."""

    def __init__(
        self,
        plan: Plan,
        source: EnvSource,
        workers: int = 0,
        guard: Guard = DEFAULT_GUARD,
        open_population_runner: Callable[[EpisodePlan], PopulationRunner] = HostPopulationRunner,
    ):
        self.generations = Generations(plan)
        size, config = self.generations.size, plan.config
        seeds = EpisodeSeeds(plan.seed, size, fixed=config.starts == "fixed")
        scenery = (plan.td3, source, plan.spec, plan.descriptor, config.episode_length)
        self._population_runner = open_population_runner(
            EpisodePlan(*scenery, size, seeds, workers, guard)
        )
        self.state = self.generations.begin()
        self._first, self._ask, self._take = _programs(self.generations)
        self._add = _add_program(plan.buffer)

    def advance(self, generations: int) -> None:
        for _ in range(generations):
            state = self.state
            generation = int(state.generation)
            policies = self._ask(state) if generation else self._first(state)
            # The reel takes replay over, and gives it back with the new steps in it.
            most = min(STEPS_AT_ONCE, self.generations.plan.buffer.num_slots - 1)
            writer = _StepWriter(self._add, state.experience, most)
            self.state = state._replace(experience=None)
            tell = None if state.experience is None else writer.tell
            try:
                played = self._play(policies, generation, tell=tell)
            except BaseException:
                self.state = state._replace(experience=writer.experience)
                raise
            self.state = self._take(self.state, policies, played, writer.finish())

    def _play(
        self,
        policies: Tree,
        episode: int,
        fresh: bool = False,
        tell: Callable[[EpisodeStep], None] | None = None,
    ) -> Played:
        """Every environment's episode of that number."""
        played = self._population_runner.play(acting(policies), episode, fresh, tell)
        return played._replace(total=np.asarray(played.total, np.float32))

    def replay(self, cells: np.ndarray) -> Again:
        size, repertoire, parts = self.generations.size, self.state.repertoire, []
        for cell, born in zip(cells, np.asarray(repertoire.born)[cells], strict=True):
            generation, row = divmod(int(born), size)
            policies = policies_in(repertoire, np.full(size, cell))
            played = self._play(policies, generation)
            parts.append((played.total[row, None], played.descriptor[row, None]))
        return Again(*(np.stack(part) for part in zip(*parts, strict=True)))

    def reevaluate(self, cells: np.ndarray, episodes: int) -> Again:
        size, count, parts = self.generations.size, len(cells), []
        for begin in range(0, count, size):
            rows = np.arange(begin, begin + size) % count
            policies = policies_in(self.state.repertoire, cells[rows])
            # Chunks meet other episodes, too: a number for every chunk and episode.
            numbers = range(begin // size * episodes, (begin // size + 1) * episodes)
            played = [self._play(policies, number, fresh=True) for number in numbers]
            parts.append([np.stack(one, axis=1) for one in zip(*played, strict=True)])
        fitness, _, descriptor = (np.concatenate(part)[:count] for part in zip(*parts, strict=True))
        return Again(fitness, descriptor)

    @property
    def faults(self) -> dict[str, int]:
        return self._population_runner.faults

    def close(self) -> None:
        self._population_runner.close()


@final
class _StepWriter:
    """Carries steps from the host to replay, some at a time, while the environments go on."""

    def __init__(self, add: Any, experience: Any, most: int):
        self._add, self.experience, self._most = add, experience, most
        self._told: list[EpisodeStep] = []

    def tell(self, told: EpisodeStep) -> None:
        self._told.append(told)
        if len(self._told) == self._most:
            self._hand_over()

    def finish(self) -> Any:
        """Replay with all steps in it."""
        if self._told:
            idle = self._told[-1]._replace(valid=np.zeros_like(self._told[-1].valid))
            # Nothing happens in these: the program is one for a fixed number of steps.
            still = idle.step._replace(last=np.zeros_like(idle.step.last))
            self._told += [EpisodeStep(still, idle.valid)] * (self._most - len(self._told))
            self._hand_over()
        return self.experience

    def _hand_over(self) -> None:
        steps, valid = jax.tree.map(lambda *rows: np.stack(rows), *self._told)
        self.experience = self._add(self.experience, steps, valid)
        self._told = []


@shared
def _programs(generations: Generations) -> tuple[Any, Any, Any]:
    take = jax.jit(generations.take, donate_argnums=(0, 3))
    return jax.jit(generations.first), jax.jit(generations.ask), take


@shared
def _add_program(buffer: Buffer) -> Any:
    """Adds steps [time, lanes, ...] to replay."""

    def add(experience: Any, steps: Step, valid: Bool[Array, "time lanes"]) -> Any:
        return buffer.add(experience, Chunk(steps, valid))

    return jax.jit(add, donate_argnums=0)
