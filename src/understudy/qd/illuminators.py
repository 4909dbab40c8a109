"""Illuminators run generations: those of native environments in one program on the device, those of
Gymnasium environments step by step, each environment with its own policy."""

from collections.abc import Callable
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from understudy.envs.base import NativeEnv
from understudy.qd.map_elites import REEVALUATION, Plan, State, as_td3
from understudy.qd.repertoire import policies_in
from understudy.training.episode_runner import EpisodeResults, EpisodeRunner, OnChunk
from understudy.training.native_episode_runner import NativeEpisodeRunner
from understudy.training.program_cache import shared
from understudy.types import Chunk, Key, Tree

STEPS_AT_ONCE = 100  # added to replay in one call, if replay is larger


class Reevaluation(NamedTuple):
    """The results of policies that were played again."""

    fitness: np.ndarray  # [policies, episodes]
    descriptor: np.ndarray  # [policies, episodes, size]


@final
class NativeIlluminator:
    """Runs generations without leaving the device."""

    def __init__(self, plan: Plan, env: NativeEnv):
        self.plan, self.state = plan, plan.begin()
        self._first, self._several, self._play = _native_programs(plan.unseeded, env)

    def advance(self, generations: int) -> None:
        """Run that many generations."""
        if generations and not int(self.state.generation):
            self.state, generations = self._first(self.state), generations - 1
        if generations:
            self.state = self._several(self.state, jnp.int32(generations))

    def replay(self, cells: np.ndarray) -> Reevaluation:
        """Play the policies of filled cells in the episodes in which they were found."""
        keys = self.plan.start_keys(self.state, self.state.repertoire.born[cells])
        return self._run_cells(cells, [keys])

    def reevaluate(self, cells: np.ndarray, episodes: int) -> Reevaluation:
        """Play the policies of filled cells in episodes that no policy has played before."""
        stream = jax.random.fold_in(self.state.key, REEVALUATION)
        of_episodes = [jax.random.fold_in(stream, episode) for episode in range(episodes)]
        cell_keys = jax.vmap(jax.random.fold_in, (None, 0))
        return self._run_cells(cells, [cell_keys(key, jnp.asarray(cells)) for key in of_episodes])

    def _run_cells(self, cells: np.ndarray, keys: list[Key]) -> Reevaluation:
        """Run the policies of these cells once for each set of keys."""

        def run(policies: Tree, rows: np.ndarray) -> list[EpisodeResults]:
            return [jax.device_get(self._play(policies, each[rows])) for each in keys]

        return _run_cells(self.plan, self.state, cells, run)

    @property
    def faults(self) -> dict[str, int]:
        """Native environments have none."""
        return {}

    def close(self) -> None:
        """Do nothing: all arrays are on the device."""


@shared
def _native_programs(plan: Plan, env: NativeEnv) -> tuple[Any, Any, Any]:
    """Return programs for the first generation, for several later ones, and for playing again."""
    runner = NativeEpisodeRunner(plan.episode_plan, env, plan.buffer)

    def evaluated(state: State, policies: Tree) -> State:
        keys = plan.start_keys(state, plan.born(state.generation))
        results, experience = runner.play(as_td3(policies), keys, state.experience)
        return plan.tell(state, policies, results, experience)

    def first(state: State) -> State:
        return evaluated(state, plan.first_policies(state))

    def several(state: State, count: Int32[Array, ""]) -> State:
        # The count is an argument, so that calls of any length run the same program.
        def one(_: Array, state: State) -> State:
            return evaluated(state, plan.ask(state))

        return jax.lax.fori_loop(0, count, one, state)

    def play(policies: Tree, keys: Key) -> EpisodeResults:
        return runner.play(as_td3(policies), keys)[0]

    return jax.jit(first, donate_argnums=0), jax.jit(several, donate_argnums=0), jax.jit(play)


@final
class HostIlluminator:
    """Gymnasium environments, one for each policy of a generation."""

    def __init__(self, plan: Plan, runner: EpisodeRunner):
        """The runner is one of `plan.episode_plan`."""
        self.plan, self.state, self._runner = plan, plan.begin(), runner
        self._first, self._ask, self._tell, self._add = _host_programs(plan.unseeded)
        self._most = min(STEPS_AT_ONCE, plan.buffer.num_slots - 1)
        self._chunks: list[Chunk] = []  # steps that are not in replay yet

    def advance(self, generations: int) -> None:
        """Run that many generations."""
        for _ in range(generations):
            generation = int(self.state.generation)
            policies = self._ask(self.state) if generation else self._first(self.state)
            self._chunks = []
            on_chunk = None if self.state.experience is None else self._write
            results = self._run(policies, generation, on_chunk=on_chunk)
            if self._chunks:
                self._flush()
            # The program gets replay once only, because it is donated.
            state, experience = self.state._replace(experience=None), self.state.experience
            self.state = self._tell(state, policies, results, experience)

    def _write(self, chunk: Chunk) -> None:
        """Take one step of all rows. Replay gets several at once, while the environments step."""
        self._chunks.append(chunk)
        if len(self._chunks) == self._most:
            self._flush()

    def _flush(self) -> None:
        # The program is one for a fixed number of steps: the rest are not valid.
        *_, chunk = self._chunks
        no_step = chunk._replace(
            steps=chunk.steps._replace(last=np.zeros_like(chunk.steps.last)),
            valid=np.zeros_like(chunk.valid),
        )
        chunks = self._chunks + [no_step] * (self._most - len(self._chunks))
        steps = jax.tree.map(lambda *parts: np.concatenate(parts), *chunks)
        # Replay is donated: the state always holds the one with the new steps.
        self.state = self.state._replace(experience=self._add(self.state.experience, steps))
        self._chunks = []

    def _run(
        self, policies: Tree, episode: int, fresh: bool = False, on_chunk: OnChunk | None = None
    ) -> EpisodeResults:
        results = self._runner.run(as_td3(policies), episode, fresh, on_chunk)
        return results._replace(returns=np.asarray(results.returns, np.float32), infos=None)

    def replay(self, cells: np.ndarray) -> Reevaluation:
        """Play the policies of filled cells in the episodes in which they were found."""
        size, repertoire, parts = self.plan.size, self.state.repertoire, []
        for cell, born in zip(cells, np.asarray(repertoire.born)[cells], strict=True):
            generation, row = divmod(int(born), size)
            results = self._run(policies_in(repertoire, np.full(size, cell)), generation)
            parts.append((results.returns[row, None], results.descriptors[row, None]))
        return Reevaluation(*(np.stack(part) for part in zip(*parts, strict=True)))

    def reevaluate(self, cells: np.ndarray, episodes: int) -> Reevaluation:
        """Play the policies of filled cells in episodes that no policy has played before."""

        def run(policies: Tree, rows: np.ndarray) -> list[EpisodeResults]:
            # Each group of rows has episodes of its own.
            first = int(rows[0]) // self.plan.size * episodes
            return [self._run(policies, first + each, fresh=True) for each in range(episodes)]

        return _run_cells(self.plan, self.state, cells, run)

    @property
    def faults(self) -> dict[str, int]:
        """Faults of environments that were survived, counted since the start."""
        return self._runner.faults

    def close(self) -> None:
        """Release environments."""
        self._runner.close()


Illuminator = NativeIlluminator | HostIlluminator


def _run_cells(
    plan: Plan, state: State, cells: np.ndarray, run: Callable[[Tree, Any], list[EpisodeResults]]
) -> Reevaluation:
    """Run the policies of filled cells, as many at a time as a generation has: `run(policies,
    rows)` gives the results of each episode of those rows of `cells`."""
    count, parts = len(cells), []
    for begin in range(0, count, plan.size):
        rows = np.arange(begin, begin + plan.size) % count
        results = run(policies_in(state.repertoire, cells[rows]), rows)
        facts = [(one.returns, one.descriptors) for one in results]
        parts.append([np.stack(one, axis=1) for one in zip(*facts, strict=True)])
    fitness, descriptor = (np.concatenate(part)[:count] for part in zip(*parts, strict=True))
    return Reevaluation(fitness, descriptor)


@shared
def _host_programs(plan: Plan) -> tuple[Any, Any, Any, Any]:
    """Return programs for the policies of the first generation, for those of a later one, for the
    end of a generation, and for adding steps to replay."""
    tell = jax.jit(plan.tell, donate_argnums=(0, 3))
    add = jax.jit(plan.buffer.add, donate_argnums=0)
    return jax.jit(plan.first_policies), jax.jit(plan.ask), tell, add
