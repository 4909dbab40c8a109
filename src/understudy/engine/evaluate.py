"""Deterministic evaluation on environments of its own, every episode counted exactly once.

Each member plays the same number of episodes, one per environment, all begun together with
fixed seeds; an environment that has finished its episode is ignored until the last one has.
No episode is left out, so short ones weigh no more than long ones; none is cut off, unless it goes
on for ever.
"""

import logging
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from understudy.algorithms.base import Algorithm
from understudy.engine.actions import initial_memory, to_real
from understudy.engine.members import EVALUATION, member_keys, over_members
from understudy.engine.trainer import Setting
from understudy.envs.base import HostEnvs, NativeEnv
from understudy.types import Key, Spec, Tree

MOST_STEPS = 27_000  # of an episode; Atari's half an hour, the longest limit in use

_log = logging.getLogger("understudy.engine")


@final
class HostEvaluator:
    """Plays episodes on Gymnasium environments: rows are member × episode."""

    def __init__(self, algorithm: Algorithm, envs: HostEnvs, members: int, episodes: int):
        self._envs, self._members, self._episodes = envs, members, episodes

        def act(policy: Any, memory: Tree, observation: Array, first: Array, key: Key):
            action, memory, _ = algorithm.act(policy, memory, observation, first, key, False)
            return action, memory

        self._act = jax.jit(over_members(act, members))
        self._begin = lambda policy: initial_memory(algorithm, policy, members, episodes)
        self._key = member_keys(0, members, EVALUATION)  # deterministic acting draws nothing

    def returns(self, policy: Any) -> np.ndarray:
        """Returns [members, episodes]."""
        observation, memory = self._envs.restart(), self._begin(policy)
        rows = len(observation)
        total, playing = np.zeros(rows), np.ones(rows, bool)
        first = np.ones((self._members, self._episodes), bool)
        steps = 0
        while playing.any() and steps < MOST_STEPS:
            steps += 1
            seen = observation.reshape(self._members, self._episodes, *observation.shape[1:])
            action, memory = self._act(policy, memory, seen, first, self._key)
            action = np.asarray(action)
            step = self._envs.step(action.reshape(rows, *action.shape[2:]))
            total += np.where(playing, step.reward, 0.0)
            total[playing & step.last & ~step.valid] = 0.0  # cut by a fault: it is played again
            playing &= ~(step.last & step.valid)
            observation, first = step.observation, step.last.reshape(first.shape)
        if playing.any():
            _log.warning(
                "%d episodes of an evaluation had not ended after %d steps: their returns are "
                "those up to there", playing.sum(), MOST_STEPS,
            )  # fmt: skip
        return total.reshape(self._members, self._episodes)

    def close(self) -> None:
        self._envs.close()


@final
class NativeEvaluator:
    """Plays episodes on native environments, all on the device."""

    def __init__(self, setting: Setting, env: NativeEnv, episodes: int):
        play = partial(_play, setting.algorithm, env, setting.spec, episodes)
        self._play = jax.jit(over_members(play, setting.num_seeds))
        self._keys = member_keys(setting.seed, setting.num_seeds, EVALUATION)

    def returns(self, policy: Any) -> np.ndarray:
        """Returns [members, episodes]."""
        return np.asarray(self._play(policy, self._keys), np.float64)

    def close(self) -> None:
        """Nothing is held outside the device's memory."""


def _play(
    algorithm: Algorithm, env: NativeEnv, spec: Spec, episodes: int, policy: Any, key: Key
) -> Array:
    reset_key, act_key = jax.random.split(key)
    state, observation = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))
    start = (
        state,
        observation,
        algorithm.memory(policy, episodes),
        jnp.ones(episodes, bool),  # playing
        jnp.zeros(episodes),
        jnp.int32(0),
    )

    def unfinished(carry: Tree) -> Array:
        return jnp.any(carry[3]) & (carry[5] < env.max_steps)

    def step(carry: Tree) -> Tree:
        state, observation, memory, playing, total, t = carry
        first = jnp.broadcast_to(t == 0, (episodes,))
        action, memory, _ = algorithm.act(policy, memory, observation, first, act_key, False)
        keys = jax.random.split(jax.random.fold_in(act_key, t), episodes)
        after = jax.vmap(env.step)(state, to_real(action, spec), keys)
        total = total + jnp.where(playing, after.reward, 0.0)
        playing = playing & ~(after.terminated | after.truncated)
        return after.state, after.observation, memory, playing, total, t + 1

    return jax.lax.while_loop(unfinished, step, start)[4]
