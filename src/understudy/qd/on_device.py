"""Illumination of native environments: one program runs any number of generations."""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from understudy.envs.base import NativeEnv
from understudy.qd.map_elites import (
    REEVALUATION,
    Illuminator,
    Plan,
    Reevaluation,
    State,
    as_td3,
)
from understudy.training.episode_runner import EpisodeResults
from understudy.training.native_episode_runner import NativeEpisodeRunner
from understudy.training.program_cache import shared
from understudy.types import Key, Tree


@final
class NativeIlluminator(Illuminator):
    """Runs generations without leaving the device."""

    def __init__(self, plan: Plan, env: NativeEnv):
        self.plan, self.state = plan, plan.begin()
        self._first, self._several, self._play = _programs(plan.unseeded, env)

    def advance(self, generations: int) -> None:
        if generations and not int(self.state.generation):
            self.state, generations = self._first(self.state), generations - 1
        if generations:
            self.state = self._several(self.state, jnp.int32(generations))

    def replay(self, cells: np.ndarray) -> Reevaluation:
        keys = self.plan.start_keys(self.state, self.state.repertoire.born[cells])
        return self._run_cells(cells, [keys])

    def reevaluate(self, cells: np.ndarray, episodes: int) -> Reevaluation:
        stream = jax.random.fold_in(self.state.key, REEVALUATION)
        of_episodes = [jax.random.fold_in(stream, episode) for episode in range(episodes)]
        cell_keys = jax.vmap(jax.random.fold_in, (None, 0))
        return self._run_cells(cells, [cell_keys(key, jnp.asarray(cells)) for key in of_episodes])

    def _run_cells(self, cells: np.ndarray, keys: list[Key]) -> Reevaluation:
        """Run the policies of these cells once for each set of keys."""

        def run(policies: Tree, rows: np.ndarray) -> list[EpisodeResults]:
            return [jax.device_get(self._play(policies, each[rows])) for each in keys]

        return self.run_cells(cells, run)

    def close(self) -> None:
        """Do nothing: all arrays are on the device."""


@shared
def _programs(plan: Plan, env: NativeEnv) -> tuple[Any, Any, Any]:
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
