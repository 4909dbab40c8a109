"""Acting on what an environment gives, in its own units; and questions about what was learned."""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from understudy.algorithms import Algorithm
from understudy.algorithms.base import Memory
from understudy.envs.spaces import to_normalized, to_real
from understudy.observation_packing import Packer
from understudy.training.program_cache import shared
from understudy.types import EnvironmentError, Spec


@final
class Acting:
    """Turns observations into actions by one seed's policy."""

    def __init__(self, algorithm: Algorithm, spec: Spec):
        self._algorithm, self._spec = algorithm, spec
        self._packer = Packer.of(spec.observation)
        self._width = algorithm.config.memory_width
        self._act = _act_program(algorithm)

    def act(
        self, policies: Any, seed_index: int, observation: Any, memory: Any, key: Any, explore: bool
    ) -> Any:
        """The action of one seed's policy for one observation or a batch; and what to remember,
        if the agent does."""
        rows, single = self._packer.pack(observation)
        before = self._before(memory, len(rows), single)
        action, after = self._act(policies, seed_index, rows, before, key, explore)
        action = to_real(np.asarray(action), self._spec)
        action = action[0] if single else action
        if not self._width:
            return action
        after = np.asarray(after)
        return action, after[0] if single else after

    def ask(self, question: Any, state: Any, observation: Any, action: Any) -> Any:
        """What the algorithm answers about a state's networks."""
        asked = [self._packer.pack(observation)[0]]
        if action is not None:
            taken = np.asarray(action).reshape(len(asked[0]), -1)
            asked.append(to_normalized(taken, self._spec))
        return jax.device_get(question(state, *map(jnp.asarray, asked)))

    def _before(self, memory: Any, rows: int, single: bool) -> np.ndarray | None:
        if not self._width:
            if memory is not None:
                raise EnvironmentError("this agent has no memory: call act(observation)")
            return None
        if memory is None:
            return np.zeros((rows, self._width), np.float32)
        wanted = (self._width,) if single else (rows, self._width)
        try:
            given = np.asarray(memory, np.float32)
        except (TypeError, ValueError) as error:
            raise EnvironmentError(
                f"a memory here is an array of shape {wanted}: {error}"
            ) from error
        if given.shape != wanted:
            raise EnvironmentError(f"a memory here has shape {wanted}, got {given.shape}")
        return given.reshape(rows, self._width)


@shared
def _act_program(algorithm: Algorithm) -> Any:
    def act(policies: Any, seed_index: Any, rows: Any, before: Any, key: Any, explore: bool) -> Any:
        policy = jax.tree.map(lambda x: x[seed_index], policies)
        memory = algorithm.memory(policy, len(rows))
        # Without a memory, noise that lingers begins anew; with one, an episode may be going on.
        first = jnp.full(len(rows), before is None)
        if before is not None:
            memory = memory._replace(hidden=before)
        action, memory, _ = algorithm.act(policy, memory, rows, first, key, explore)
        return action, memory.hidden if isinstance(memory, Memory) else None

    return jax.jit(act, static_argnums=5)
