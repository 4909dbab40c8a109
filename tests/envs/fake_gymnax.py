"""A module with the interface of Gymnax 1.0: functions of keys, states and parameters."""

from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp


@partial(jax.tree_util.register_dataclass, data_fields=["place", "time"], meta_fields=[])
@dataclass(frozen=True)
class State:
    place: jax.Array
    time: int


@dataclass(frozen=True)
class Params:
    goal: float = 3.0
    max_steps_in_episode: int = 5

    def replace(self, **changes):
        return replace(self, **changes)


class Walk:
    """Walk from 0; beyond the goal the episode terminates. Time begins as a Python number."""

    def __init__(self, continuous=True):
        self.continuous = continuous

    @property
    def default_params(self):
        return Params()

    def reset_env(self, key, params):
        state = State(0.0, 0)
        return self._see(state), state

    def step_env(self, key, state, action, params):
        moved = jnp.ravel(action)[0] if self.continuous else action - 1
        state = State(state.place + moved, state.time + 1)
        reward = jnp.where(state.place > params.goal, 10, jnp.ravel(moved))  # [1] if continuous
        return self._see(state), state, reward, state.place > params.goal, {"discount": 0.0}

    def step(self, *inputs):
        raise AssertionError("it resets by itself")

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode

    def _see(self, state):
        return jnp.array([[state.place, state.time]])  # a matrix

    def action_space(self, params):
        if self.continuous:
            return SimpleNamespace(low=-1.0, high=jnp.array([2.0]), shape=(1,))
        return SimpleNamespace(n=3, shape=())

    def observation_space(self, params):
        return SimpleNamespace(low=-9.0, high=9.0, shape=(1, 2))


class Cells(Walk):
    """Shows the number of its cell."""

    def _see(self, state):
        return jnp.asarray(state.place, jnp.int32)

    def observation_space(self, params):
        return SimpleNamespace(n=4, shape=())


class Planes(Walk):
    def _see(self, state):
        return jnp.zeros((4, 4, 2)).at[0, 0, 1].set(1.0)


class Pair(Walk):
    def _see(self, state):
        return {"place": state.place}


FACTORIES = {"Walk-v0": Walk, "Cells-v0": Cells, "Planes-MinAtar": Planes, "Pair-v0": Pair}


def make_fake():
    module = ModuleType("gymnax")

    def make(name, **args):
        env = FACTORIES[name](**args)
        return env, env.default_params

    module.registered_envs, module.make = list(FACTORIES), make
    return module
