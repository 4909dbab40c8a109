"""The host loop: Gymnasium environments step on the CPU while the device updates.

One iteration is

    act → add the previous step and update (asynchronously) → step the environments

The update of iteration t learns from steps up to t − 1: that fixed lag is what lets the
environments step while it runs. Acting is dispatched first, so the action is ready before the
update starts; nothing waits except for the action itself.
"""

from functools import partial
from typing import Any, final

import jax
import numpy as np
from jaxtyping import Array

from understudy.engine.actions import uniform_actions, with_members
from understudy.engine.members import ACTING, member_keys, over_members
from understudy.engine.packing import Parcel
from understudy.engine.trainer import Setting, Trainer
from understudy.engine.updates import Learner, updates
from understudy.envs.base import HostEnvs, HostStep
from understudy.experience import Ring, add
from understudy.types import ArraySpec, Continuous, Key, Spec, Transition, Tree


@final
class HostTrainer(Trainer):
    """Trains K members on K × N Gymnasium environments."""

    def __init__(self, setting: Setting, envs: HostEnvs):
        self.setting = setting
        self._envs = envs
        self._start()
        members, num_envs = setting.num_seeds, setting.num_envs
        self._parcel = Parcel(_report_fields(setting.spec))
        self._programs = Programs(setting, self._parcel)
        self._memory = with_members(setting.algorithm.memory(num_envs), members)
        self._act_key = member_keys(setting.seed, members, ACTING)
        self._tally = EpisodeTally(members, num_envs)
        self._arrived: Any = None  # the packed report of the last step, on the device
        self._observation: Any = None  # what was acted on before that step …
        self._action: Any = None  # … and how

    def advance(self, iterations: int) -> None:
        if self._arrived is None:
            self._arrived = self._send_reset(self._envs.reset())
        for _ in range(iterations):
            previous = self._observation, self._action
            act = self._programs.random if self._acting_randomly() else self._programs.act
            self._action, self._observation, self._memory, self._act_key = act(
                self.policy(), self._memory, self._arrived, self._act_key
            )
            if previous[1] is not None:
                self._learn(*previous)
            step = self._envs.step(self._programs.to_host(self._action))
            self._tally.count(step)
            self._arrived = self._send(step)
            self.position.iterations += 1

    def _acting_randomly(self) -> bool:
        return self.cadence.random(self.position.iterations)

    def _learn(self, observation: Array, action: Array) -> None:
        """Add the step that has arrived and do the updates it owes; returns at once."""
        count = self.cadence.updates_after(self.position.iterations - 1)
        self.learner, self.ring = self._programs.learn(
            self.learner,
            self.ring,
            observation,
            action,
            self._arrived,
            np.int32(self.position.updates),
            count,
        )
        self.position.updates += count

    def _send(self, step: HostStep) -> Array:
        report = step._asdict() | {"first": step.last | ~step.valid}
        return self._to_device(self._parcel.pack(len(step.reward), report))

    def _send_reset(self, observation: np.ndarray) -> Array:
        rows = len(observation)
        begun = {"observation": observation, "next_observation": observation, "reward": 0.0}
        flags = {"terminated": False, "last": False, "valid": False, "first": True}
        return self._to_device(self._parcel.pack(rows, begun | flags))

    def _to_device(self, block: np.ndarray) -> Array:
        return jax.device_put(block.reshape(self.setting.num_seeds, self.setting.num_envs, -1))

    def episodes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return self._tally.take()

    def close(self) -> None:
        self._envs.close()


@final
class Programs:
    """The compiled halves of an iteration, lifted over members."""

    def __init__(self, setting: Setting, parcel: Parcel):
        algorithm, members = setting.algorithm, setting.num_seeds
        action_shape = _action_shape(setting.spec)

        def act(policy: Any, memory: Tree, arrived: Array, key: Key):
            report = parcel.unpack(arrived)
            key, noise_key = jax.random.split(key)
            action, memory, _ = algorithm.act(
                policy, memory, report["observation"], report["first"], noise_key, True
            )
            return action, report["observation"], memory, key

        def random(policy: Any, memory: Tree, arrived: Array, key: Key):
            report = parcel.unpack(arrived)
            key, draw_key = jax.random.split(key)
            action = uniform_actions(setting.spec, setting.num_envs, draw_key)
            return action, report["observation"], memory, key

        def learn(
            learner: Learner,
            ring: Ring,
            observation: Array,
            action: Array,
            arrived: Array,
            index: Array,
            count: int,
        ):
            report = parcel.unpack(arrived)
            step = Transition(
                observation,
                action,
                report["reward"],
                report["terminated"],
                report["last"],
                report["next_observation"],
            )
            ring = add(ring, step, report["valid"])
            if count:
                learner = updates(algorithm, learner, ring, index, count)
            return learner, ring

        def learn_members(learner, ring, observation, action, arrived, index, count):
            lifted = over_members(partial(learn, count=count), members, shared=(5,))
            return lifted(learner, ring, observation, action, arrived, index)

        self.act = jax.jit(over_members(act, members))
        self.random = jax.jit(over_members(random, members))
        self.learn = jax.jit(learn_members, donate_argnums=(0, 1), static_argnums=6)
        self._rows = (members * setting.num_envs, *action_shape)

    def to_host(self, action: Array) -> np.ndarray:
        return np.asarray(action).reshape(self._rows)


def _action_shape(spec: Spec) -> tuple[int, ...]:
    return (spec.action.size,) if isinstance(spec.action, Continuous) else ()


def _report_fields(spec: Spec) -> dict[str, ArraySpec]:
    flag = ArraySpec((), "bool")
    return {
        "observation": spec.observation,
        "next_observation": spec.observation,
        "reward": ArraySpec(()),
        "terminated": flag,
        "last": flag,
        "valid": flag,
        "first": flag,
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
