"""The host loop: Gymnasium environments step on the CPU while the device updates.

One iteration is

    act → hand over the previous step for learning → step the environments

Learning runs beside the environments' step. The update of iteration t learns from steps up to
t − 1 and its policy acts from iteration t + 1 on: that lag is fixed, so nothing waits and runs
stay reproducible.
"""

from functools import partial
from typing import Any, final

import jax
import numpy as np
from jaxtyping import Array

from understudy.engine.actions import uniform_actions, with_members
from understudy.engine.learning import LearningSide, learning_side
from understudy.engine.members import ACTING, member_keys, over_members
from understudy.engine.packing import Parcel
from understudy.engine.trainer import Setting, Trainer
from understudy.engine.updates import Learner
from understudy.envs.base import HostEnvs, HostStep
from understudy.experience import Ring
from understudy.types import ArraySpec, Continuous, Key, Spec, Tree


@final
class HostTrainer(Trainer):
    """Trains K members on K × N Gymnasium environments."""

    def __init__(self, setting: Setting, envs: HostEnvs):
        self.setting = setting
        self._envs = envs
        self._parcel = Parcel(_step_fields(setting.spec))
        self.side = learning_side(setting.algorithm, self._parcel, *self._start())
        members, num_envs = setting.num_seeds, setting.num_envs
        self.act, self.act_randomly = act_programs(setting, self.side)
        # Committed to where acting happens: the act programs follow them there.
        memory = with_members(setting.algorithm.memory(num_envs), members)
        keys = member_keys(setting.seed, members, ACTING)
        self._memory, self._act_key = jax.device_put((memory, keys), self.side.act_device)
        self._tally = EpisodeTally(members, num_envs)
        self._observation: Any = None  # what to act on next, [K, N, ...] …
        self._first = np.ones((members, num_envs), bool)  # … and where an episode begins
        self._happened: Any = None  # the last step, packed for the device

    def advance(self, iterations: int) -> None:
        if self._observation is None:
            self._observation = self._by_member(self._envs.reset())
        for _ in range(iterations):
            policy = self.side.policy()
            if self.side.frees_policy:
                self._learn()
            act = self.act_randomly if self._acting_randomly() else self.act
            action, self._memory, self._act_key = act(
                policy, self._memory, self._observation, self._first, self._act_key
            )
            if not self.side.frees_policy:
                self._learn()
            action = np.asarray(action)
            step = self._envs.step(action.reshape(-1, *action.shape[2:]))
            self._tally.count(step)
            self._happened = self._pack(action, step)
            self._observation = self._by_member(step.observation)
            self._first = self._by_member(step.last | ~step.valid)
            self.position.iterations += 1

    def _acting_randomly(self) -> bool:
        return self.cadence.random(self.position.iterations)

    def _learn(self) -> None:
        """Have the last step added and the updates it owes done; returns at once."""
        if self._happened is None:
            return
        count = self.cadence.updates_after(self.position.iterations - 1)
        self.side.learn(self._happened, count)
        self.position.updates += count

    def _pack(self, action: np.ndarray, step: HostStep) -> np.ndarray:
        """What happened as one block [K, N, bytes]."""
        rows = len(step.reward)
        acted = {
            "observation": self._observation.reshape(step.observation.shape),
            "action": action.reshape(rows, *action.shape[2:]),
        }
        return self._by_member(self._parcel.pack(rows, step._asdict() | acted))

    def _by_member(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(self.setting.num_seeds, self.setting.num_envs, *rows.shape[1:])

    @property
    def learner(self) -> Learner:
        return self.side.learner

    @learner.setter
    def learner(self, learner: Learner) -> None:
        self.side.learner = learner

    @property
    def ring(self) -> Ring:
        return self.side.ring

    @ring.setter
    def ring(self, ring: Ring) -> None:
        self.side.ring = ring

    def resume(self, state: Any, iterations: int, updates: int) -> None:
        super().resume(state, iterations, updates)
        self.side.restart_counting(updates)

    def episodes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return self._tally.take()

    def close(self) -> None:
        self.side.close()
        self._envs.close()


def act_programs(setting: Setting, side: LearningSide) -> tuple[Any, Any]:
    """The compiled act programs, by policy and at random, lifted over members."""

    def act(policy: Any, memory: Tree, observation: Array, first: Array, key: Key, random: bool):
        key, draw_key = jax.random.split(key)
        if random:
            return uniform_actions(setting.spec, setting.num_envs, draw_key), memory, key
        action, memory, _ = setting.algorithm.act(
            side.read_policy(policy), memory, observation, first, draw_key, True
        )
        return action, memory, key

    members = setting.num_seeds
    by_policy = jax.jit(over_members(partial(act, random=False), members))
    return by_policy, jax.jit(over_members(partial(act, random=True), members))


def _action_shape(spec: Spec) -> tuple[int, ...]:
    return (spec.action.size,) if isinstance(spec.action, Continuous) else ()


def _step_fields(spec: Spec) -> dict[str, ArraySpec]:
    flag = ArraySpec((), "bool")
    kind = "float32" if isinstance(spec.action, Continuous) else "int32"
    return {
        "observation": spec.observation,
        "action": ArraySpec(_action_shape(spec), kind),
        "reward": ArraySpec(()),
        "terminated": flag,
        "last": flag,
        "next_observation": spec.observation,
        "valid": flag,
    }


@final
class EpisodeTally:
    """Returns and lengths of episodes, counted on the host in double precision."""

    def __init__(self, members: int, num_envs: int):
        self._num_envs = num_envs
        self._returns = np.zeros(members * num_envs)
        self._lengths = np.zeros(members * num_envs, np.int64)
        self._ended: list[list[tuple[float, int]]] = [[] for _ in range(members)]

    def count(self, step: HostStep) -> None:
        self._returns += step.reward
        self._lengths += step.valid
        if step.last.any():
            for row in np.flatnonzero(step.last & step.valid):
                self._ended[row // self._num_envs].append(
                    (float(self._returns[row]), int(self._lengths[row]))
                )
            self._returns[step.last] = 0.0
            self._lengths[step.last] = 0

    def take(self) -> list[tuple[np.ndarray, np.ndarray]]:
        taken = [(np.array([r for r, _ in e]), np.array([n for _, n in e])) for e in self._ended]
        self._ended = [[] for _ in self._ended]
        return taken
