"""Illumination of Gymnasium environments: each steps with its own policy, and the steps are added
to replay."""

from typing import Any, final

import jax
import numpy as np

from understudy.buffers import Buffer
from understudy.qd.map_elites import Illuminator, Plan, Reevaluation, as_td3
from understudy.qd.repertoire import policies_in
from understudy.training.episode_runner import EpisodeResults, EpisodeRunner, OnChunk
from understudy.training.program_cache import shared
from understudy.types import Chunk, Tree

STEPS_AT_ONCE = 100  # added to replay in one call, if replay is larger


@final
class HostIlluminator(Illuminator):
    """Gymnasium environments, one for each policy of a generation."""

    def __init__(self, plan: Plan, runner: EpisodeRunner):
        """The runner is one of `plan.episode_plan`."""
        self.plan, self.state, self._runner = plan, plan.begin(), runner
        self._first, self._ask, self._tell = _programs(plan.unseeded)
        self._add = _add_program(plan.buffer)

    def advance(self, generations: int) -> None:
        for _ in range(generations):
            state = self.state
            generation = int(state.generation)
            policies = self._ask(state) if generation else self._first(state)
            # The writer donates replay to its programs, and returns it with the new steps.
            most = min(STEPS_AT_ONCE, self.plan.buffer.num_slots - 1)
            writer = _ReplayWriter(self._add, state.experience, most)
            self.state = state._replace(experience=None)
            on_chunk = None if state.experience is None else writer.write
            try:
                results = self._run(policies, generation, on_chunk=on_chunk)
            except BaseException:
                self.state = state._replace(experience=writer.experience)
                raise
            self.state = self._tell(self.state, policies, results, writer.finish())

    def _run(
        self, policies: Tree, episode: int, fresh: bool = False, on_chunk: OnChunk | None = None
    ) -> EpisodeResults:
        results = self._runner.run(as_td3(policies), episode, fresh, on_chunk)
        return results._replace(returns=np.asarray(results.returns, np.float32))

    def replay(self, cells: np.ndarray) -> Reevaluation:
        size, repertoire, parts = self.plan.size, self.state.repertoire, []
        for cell, born in zip(cells, np.asarray(repertoire.born)[cells], strict=True):
            generation, row = divmod(int(born), size)
            results = self._run(policies_in(repertoire, np.full(size, cell)), generation)
            parts.append((results.returns[row, None], results.descriptors[row, None]))
        return Reevaluation(*(np.stack(part) for part in zip(*parts, strict=True)))

    def reevaluate(self, cells: np.ndarray, episodes: int) -> Reevaluation:
        def run(policies: Tree, rows: np.ndarray) -> list[EpisodeResults]:
            # Each group of rows has episodes of its own.
            first = int(rows[0]) // self.plan.size * episodes
            return [self._run(policies, first + each, fresh=True) for each in range(episodes)]

        return self.run_cells(cells, run)

    @property
    def faults(self) -> dict[str, int]:
        return self._runner.faults

    def close(self) -> None:
        self._runner.close()


@final
class _ReplayWriter:
    """Adds the steps of a generation to replay, `most` at a time, while the environments step."""

    def __init__(self, add: Any, experience: Any, most: int):
        self._add, self.experience, self._most = add, experience, most
        self._chunks: list[Chunk] = []

    def write(self, chunk: Chunk) -> None:
        """Take one step of all rows."""
        self._chunks.append(chunk)
        if len(self._chunks) == self._most:
            self._flush()

    def finish(self) -> Any:
        """Replay with all steps in it."""
        if self._chunks:
            # The program is one for a fixed number of steps: the rest are not valid.
            *_, chunk = self._chunks
            no_step = chunk._replace(
                steps=chunk.steps._replace(last=np.zeros_like(chunk.steps.last)),
                valid=np.zeros_like(chunk.valid),
            )
            self._chunks += [no_step] * (self._most - len(self._chunks))
            self._flush()
        return self.experience

    def _flush(self) -> None:
        chunk = jax.tree.map(lambda *steps: np.concatenate(steps), *self._chunks)
        self.experience = self._add(self.experience, chunk)
        self._chunks = []


@shared
def _programs(plan: Plan) -> tuple[Any, Any, Any]:
    tell = jax.jit(plan.tell, donate_argnums=(0, 3))
    return jax.jit(plan.first_policies), jax.jit(plan.ask), tell


@shared
def _add_program(buffer: Buffer) -> Any:
    return jax.jit(buffer.add, donate_argnums=0)
