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
    Again,
    Generations,
    Illuminator,
    Plan,
    State,
    acting,
)
from understudy.qd.repertoire import policies_in
from understudy.training.episode_runner import NativeEpisodeRunner, Played
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

    def replay(self, cells: np.ndarray) -> Again:
        keys = self.generations.start_keys(self.state, self.state.repertoire.born[cells])
        return self._play_again(cells, [keys])

    def reevaluate(self, cells: np.ndarray, episodes: int) -> Again:
        stream = jax.random.fold_in(self.state.key, REEVALUATION)
        of_episodes = [jax.random.fold_in(stream, episode) for episode in range(episodes)]
        cell_keys = jax.vmap(jax.random.fold_in, (None, 0))
        return self._play_again(cells, [cell_keys(key, jnp.asarray(cells)) for key in of_episodes])

    def _play_again(self, cells: np.ndarray, keys: list[Key]) -> Again:
        """Once for each set of keys. The program is one for a whole generation."""
        size, count, parts = self.generations.size, len(cells), []
        for begin in range(0, count, size):
            rows = np.arange(begin, begin + size) % count
            policies = policies_in(self.state.repertoire, cells[rows])
            played = [jax.device_get(self._again(policies, each[rows])) for each in keys]
            parts.append([np.stack(one, axis=1) for one in zip(*played, strict=True)])
        fitness, _, descriptor = (np.concatenate(part)[:count] for part in zip(*parts, strict=True))
        return Again(fitness, descriptor)

    def close(self) -> None:
        """Nothing is held outside the device's memory."""


@shared
def _programs(generations: Generations, env: NativeEnv) -> tuple[Any, Any, Any]:
    """The first generation, any number of later ones, and what plays policies again."""
    plan, length = generations.plan, generations.plan.config.episode_length
    size, descriptor = generations.size, plan.descriptor
    runner = NativeEpisodeRunner(
        plan.td3, env, plan.spec, (size, 1), descriptor, length, buffer=plan.buffer
    )

    def evaluated(state: State, policies: Tree) -> State:
        keys = generations.start_keys(state, generations.born(state.generation))
        played, experience = runner.play(acting(policies), keys, state.experience)
        return generations.take(state, policies, played, experience)

    def first(state: State) -> State:
        return evaluated(state, generations.first(state))

    def several(state: State, count: Int32[Array, ""]) -> State:
        # The number is no part of the program: however generations are divided among calls,
        # they compute the same.
        def one(_: Array, state: State) -> State:
            return evaluated(state, generations.ask(state))

        return jax.lax.fori_loop(0, count, one, state)

    def again(policies: Tree, keys: Key) -> Played:
        return runner.play(acting(policies), keys)[0]

    begin, go_on = (jax.jit(program, donate_argnums=0) for program in (first, several))
    return begin, go_on, jax.jit(again)
