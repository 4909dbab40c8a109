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
        self._programs = Programs(setting, self._parcel, self.learner)
        self._memory = with_members(setting.algorithm.memory(num_envs), members)
        self._act_key = member_keys(setting.seed, members, ACTING)
        self._tally = EpisodeTally(members, num_envs)
        self._arrived: Any = None  # the packed report of the last step
        self._acted: Any = None  # (observation, action) that led to it, on the device

    @property
    def learner(self) -> Learner:
        return jax.tree.unflatten(self._structure, self._leaves)

    @learner.setter
    def learner(self, learner: Learner) -> None:
        # Between programs only the leaves are held: taking modules apart and putting them
        # together costs Python more time than a small network's update takes.
        self._leaves, self._structure = jax.tree.flatten(learner)

    def advance(self, iterations: int) -> None:
        programs = self._programs
        if self._arrived is None:
            self._arrived = self._pack_reset(self._envs.reset())
        for _ in range(iterations):
            act = programs.random if self._acting_randomly() else programs.act
            action, report, self._memory, self._act_key = act(
                programs.policy(self._leaves), self._memory, self._arrived, self._act_key
            )
            if self._acted is not None:
                self._learn(report)
            step = self._envs.step(programs.to_host(action))
            self._tally.count(step)
            self._acted, self._arrived = (report["observation"], action), self._pack(step)
            self.position.iterations += 1

    def _acting_randomly(self) -> bool:
        return self.cadence.random(self.position.iterations)

    def _learn(self, report: dict[str, Array]) -> None:
        """Add the step that has arrived and do the updates it owes; returns at once."""
        count = self.cadence.updates_after(self.position.iterations - 1)
        index = np.int32(self.position.updates)
        self._leaves, self.ring = self._programs.learn(
            self._leaves, self.ring, *self._acted, report, index, count
        )
        self.position.updates += count

    def _pack(self, step: HostStep) -> np.ndarray:
        return self._block(step._asdict() | {"first": step.last | ~step.valid})

    def _pack_reset(self, observation: np.ndarray) -> np.ndarray:
        begun = {"observation": observation, "next_observation": observation, "reward": 0.0}
        flags = {"terminated": False, "last": False, "valid": False, "first": True}
        return self._block(begun | flags)

    def _block(self, report: dict[str, Any]) -> np.ndarray:
        members, num_envs = self.setting.num_seeds, self.setting.num_envs
        return self._parcel.pack(members * num_envs, report).reshape(members, num_envs, -1)

    def episodes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return self._tally.take()

    def close(self) -> None:
        self._envs.close()


@final
class Programs:
    """The compiled halves of an iteration, lifted over members."""

    def __init__(self, setting: Setting, parcel: Parcel, learner: Learner):
        algorithm, members = setting.algorithm, setting.num_seeds
        places, structure = _places(learner)
        policy_places, policy_structure = jax.tree.flatten(algorithm.policy(places.state))

        def act(policy: list[Array], memory: Tree, arrived: Array, key: Key, random: bool):
            report = parcel.unpack(arrived)
            key, draw_key = jax.random.split(key)
            if random:
                action = uniform_actions(setting.spec, setting.num_envs, draw_key)
            else:
                slice_ = jax.tree.unflatten(policy_structure, policy)
                observation, first = report["observation"], report["first"]
                action, memory, _ = algorithm.act(
                    slice_, memory, observation, first, draw_key, True
                )
            return action, report, memory, key

        def learn(learner: Learner, ring: Ring, observation, action, report, index, count: int):
            facts = (report[name] for name in ("reward", "terminated", "last", "next_observation"))
            ring = add(ring, Transition(observation, action, *facts), report["valid"])
            if count:
                learner = updates(algorithm, learner, ring, index, count)
            return learner, ring

        def learn_members(leaves, ring, observation, action, report, index, count):
            lifted = over_members(partial(learn, count=count), members, shared=(5,))
            learner = jax.tree.unflatten(structure, leaves)
            learner, ring = lifted(learner, ring, observation, action, report, index)
            return jax.tree.leaves(learner), ring

        self.act = jax.jit(over_members(partial(act, random=False), members))
        self.random = jax.jit(over_members(partial(act, random=True), members))
        self.learn = jax.jit(learn_members, donate_argnums=(0, 1), static_argnums=6)
        self._policy_places = policy_places
        self._rows = (members * setting.num_envs, *_action_shape(setting.spec))

    def policy(self, leaves: list[Array]) -> list[Array]:
        """The acting slice, out of the learner's leaves."""
        return [leaves[place] for place in self._policy_places]

    def to_host(self, action: Array) -> np.ndarray:
        return np.asarray(action).reshape(self._rows)


def _places(learner: Learner) -> tuple[Learner, Any]:
    """The learner with each leaf replaced by its place among the leaves; and its structure."""
    leaves, structure = jax.tree.flatten(learner)
    return jax.tree.unflatten(structure, range(len(leaves))), structure


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
