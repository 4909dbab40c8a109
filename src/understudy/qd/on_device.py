"""Illumination of native environments: a generation is one program, and as many as are wanted run
in it one after the other."""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from understudy.envs.base import NativeEnv
from understudy.qd.map_elites import (
    REEVALUATION,
    Generations,
    Illuminator,
    Plan,
    Reevaluation,
    State,
    acting,
)
from understudy.training.episode_runner import EpisodeResults
from understudy.training.native_episode_runner import NativeEpisodeRunner
from understudy.training.program_cache import shared
from understudy.types import Key, Tree


@final
class NativeIlluminator(Illuminator):
    """Generations that never leave the device."""

    def __init__(self, plan: Plan, env: NativeEnv):
        self.generations = Generations(plan)
        self.state = self.generations.begin()
        self._begin, self._go_on, self._again = _programs(self.generations, env)

    def advance(self, generations: int) -> None:
        if generations and not int(self.state.generation):
            self.state, generations = self._begin(self.state), generations - 1
        if generations:
            self.state = self._go_on(self.state, jnp.int32(generations))

    def replay(self, cells: np.ndarray) -> Reevaluation:
        keys = self.generations.start_keys(self.state, self.state.repertoire.born[cells])
        return self._run_cells(cells, [keys])

    def reevaluate(self, cells: np.ndarray, episodes: int) -> Reevaluation:
        stream = jax.random.fold_in(self.state.key, REEVALUATION)
        of_episodes = [jax.random.fold_in(stream, episode) for episode in range(episodes)]
        cell_keys = jax.vmap(jax.random.fold_in, (None, 0))
        return self._run_cells(cells, [cell_keys(key, jnp.asarray(cells)) for key in of_episodes])

    def _run_cells(self, cells: np.ndarray, keys: list[Key]) -> Reevaluation:
        """Run the policies of these cells once for each set of keys."""

        def run(policies: Tree, rows: np.ndarray) -> list[EpisodeResults]:
            return [jax.device_get(self._again(policies, each[rows])) for each in keys]

        return self.run_cells(cells, run)

    def close(self) -> None:
        """Nothing is held outside the device's memory."""


@shared
def _programs(generations: Generations, env: NativeEnv) -> tuple[Any, Any, Any]:
    """The first generation, any number of later ones, and what plays policies again."""
    plan = generations.plan
    runner = NativeEpisodeRunner(plan.episode_plan, env, plan.buffer)

    def evaluated(state: State, policies: Tree) -> State:
        keys = generations.start_keys(state, generations.born(state.generation))
        results, experience = runner.play(acting(policies), keys, state.experience)
        return generations.take(state, policies, results, experience)

    def first(state: State) -> State:
        return evaluated(state, generations.first(state))

    def several(state: State, count: Int32[Array, ""]) -> State:
        # The number is no part of the program: however generations are divided among calls,
        # they compute the same.
        def one(_: Array, state: State) -> State:
            return evaluated(state, generations.ask(state))

        return jax.lax.fori_loop(0, count, one, state)

    def again(policies: Tree, keys: Key) -> EpisodeResults:
        return runner.play(acting(policies), keys)[0]

    begin, go_on = (jax.jit(program, donate_argnums=0) for program in (first, several))
    return begin, go_on, jax.jit(again)
