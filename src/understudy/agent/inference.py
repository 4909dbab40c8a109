"""Arrays that a user gives to an agent: observations, actions and memories in the environment's own
units, for functions of the algorithm, and weights."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from understudy.algorithms import Algorithm
from understudy.algorithms.base import Memory
from understudy.algorithms.normalization import normalize_observation
from understudy.envs.spaces import to_normalized, to_real
from understudy.observation_packing import Packer
from understudy.training.program_cache import shared
from understudy.types import ConfigError, EnvironmentError, Spec


@final
class Inference:
    """Maps observations and actions of an environment to those of an algorithm, and back."""

    def __init__(self, algorithm: Algorithm, spec: Spec, seed: int = 0):
        """The noise of exploration follows from the seed."""
        self._algorithm, self._spec, self._seed = algorithm, spec, seed
        self._packer = Packer(spec.observation)
        self._width = algorithm.config.memory_width
        self._version, self._structure = None, jax.tree.structure(())  # no policy

    def use_policies(self, version: Any, policies: Callable[[], Any]) -> None:
        """Act with `policies()`, which have a seed axis, from now on. The version is an object that
        is replaced whenever they change: if it is the same, nothing is read."""
        if version is self._version:
            return
        leaves, structure = jax.tree.flatten(policies())
        if structure != self._structure:
            self._structure, self._act = structure, _act_program(self._algorithm, structure)
        self._leaves, self._version = jax.device_put(leaves), version  # loaded ones are NumPy's

    def act(self, seed_index: int, observation: Any, memory: Any, draw: int | None) -> Any:
        """Return the action of one seed's policy for one observation or a batch. A recurrent policy
        also returns its memory. The policy explores with the noise of that `draw`, if given."""
        rows, single = self._packer.pack(observation)
        before = self._check_memory(memory, len(rows), single)
        noise = None if draw is None else (self._key, np.uint32(draw))
        action, after = self._act(self._leaves, seed_index, rows, before, noise)
        action = to_real(np.asarray(action), self._spec)
        action = action[0] if single else action
        if not self._width:
            return action
        after = np.asarray(after)
        return action, after[0] if single else after

    @cached_property
    def _key(self) -> np.ndarray:
        return np.asarray(jax.random.PRNGKey(self._seed))

    def query(self, name: str, state: Any, observation: Any, action: Any) -> Any:
        """Call a function of the algorithm, of (state, observation[, action]); return NumPy
        arrays."""
        function = getattr(self._algorithm, name, None)
        if function is None:
            raise AttributeError(f"{self._algorithm.name.upper()} has no {name}")
        seen = jnp.asarray(self._packer.pack(observation)[0])
        inputs = [normalize_observation(state.normalizer.observation, seen)]
        if action is not None:
            rows = np.asarray(action).reshape(len(seen), -1)
            inputs.append(jnp.asarray(to_normalized(rows, self._spec)))
        return jax.device_get(function(state, *inputs))

    def _check_memory(self, memory: Any, rows: int, single: bool) -> np.ndarray | None:
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


def check_weights(given: dict[str, Any], present: dict[str, Any]) -> None:
    """Refuse weights that do not have the structure and the shapes of the present ones."""
    if not isinstance(given, dict) or given.keys() != present.keys():
        raise ConfigError(f"weights must be a dict of {', '.join(present)}")
    for name in present:
        leaves, structure = jax.tree.flatten(present[name])
        if jax.tree.structure(given[name]) != structure:
            raise ConfigError(f"weights of {name}: not the structure of this network")
        for new, old in zip(jax.tree.leaves(given[name]), leaves, strict=True):
            shape, wanted = np.shape(new), np.shape(old)
            if shape != wanted:
                raise ConfigError(f"weights of {name}: shape {shape} where {wanted} is needed")
            if not np.all(np.isfinite(new)):
                raise ConfigError(f"weights of {name} are not all finite")


@shared
def _act_program(algorithm: Algorithm, structure: Any) -> Any:
    """The program that acts. It takes the leaves of the policies, because flattening a tree of
    modules takes longer than acting with a small network."""

    def understudy_act(
        leaves: list[Any], seed_index: Any, rows: Any, before: Any, noise: Any
    ) -> Any:
        policy = jax.tree.unflatten(structure, [leaf[seed_index] for leaf in leaves])
        memory = algorithm.memory(policy, len(rows))
        # Without a memory, correlated noise starts anew; with one, an episode may be in progress.
        first = jnp.full(len(rows), before is None)
        if before is not None:
            memory = memory._replace(recurrent_state=before)
        explore = noise is not None
        key = jax.random.fold_in(*noise) if explore else jax.random.PRNGKey(0)  # the latter unused
        action, memory, _ = algorithm.act(policy, memory, rows, first, key, explore)
        return action, memory.recurrent_state if isinstance(memory, Memory) else None

    return jax.jit(understudy_act)
