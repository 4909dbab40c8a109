"""The host loop: Gymnasium environments step on the CPU while the device updates.

One iteration is

    act → hand over the previous step for learning → step the environments

Learning runs beside the environments' step: the update of iteration t learns from steps up to
t − 1, and its policy acts from iteration t + 1 on. That lag is fixed, so nothing waits and runs
stay reproducible. One block of bytes goes to the device per iteration.

Rollouts must be the present policy's own: a complete one is handed over, in one call, before
acting, and acting waits for the update.
"""

from typing import Any, ClassVar, final

import jax
import numpy as np
from jaxtyping import Array

from understudy.algorithms.base import Memory, Rollout
from understudy.engine.actions import initial_memory, uniform_actions
from understudy.engine.feeding import Experience
from understudy.engine.keeping import EVERYWHERE, HostReplay, choose, is_of_host, make
from understudy.engine.learning import Learning
from understudy.engine.members import ACTING, member_keys, over_members
from understudy.engine.open_episodes import EpisodeTally, OpenActions
from understudy.engine.packing import Parcel
from understudy.engine.snapshot import (
    Named,
    Snapshot,
    name_leaves,
    part_of,
    put_back,
    to_host,
    under,
)
from understudy.engine.trainer import Setting, Trainer
from understudy.engine.updates import Learner
from understudy.envs.base import HostEnvs, HostStep
from understudy.types import ArraySpec, Key, Spec, Tree

MOST_LOOKS = 5_000  # about half a millisecond


@final
class HostTrainer(Trainer):
    """Trains K members on K × N Gymnasium environments."""

    places: ClassVar[tuple[str, ...]] = EVERYWHERE

    def __init__(self, setting: Setting, envs: HostEnvs):
        self.setting = setting
        self._envs = envs
        width = setting.algorithm.config.memory_width
        self._fields = _block_fields(setting.spec, width)
        self._parcel = Parcel(self._fields)
        self.learning = Learning(setting.algorithm, self._parcel, *self._start())
        members, num_envs = setting.num_seeds, setting.num_envs
        self.act = act_program(setting, self._parcel, self.learning, random=False)
        self.act_randomly = act_program(setting, self._parcel, self.learning, random=True)
        keys = member_keys(setting.seed, members, ACTING)
        memory = initial_memory(setting.algorithm, self.policy(), members, num_envs)
        # Committed to where acting happens: the act programs follow them there.
        self._memory, self._act_key = jax.device_put((memory, keys), self.learning.act_device)
        self._on_policy = isinstance(setting.algorithm.appetite, Rollout)
        self._waiting: list[np.ndarray] = []  # blocks of a rollout that is not yet complete
        self._tally = EpisodeTally(members, num_envs)
        self._open_actions = OpenActions(members * num_envs)
        self._block: Any = None  # the last step and what to act on next, packed

    def advance(self, iterations: int) -> None:
        if self._block is None:
            self._block = self._pack_reset(self._envs.reset())
        for _ in range(iterations):
            if self.interrupted:
                break
            act = self.act_randomly if self._acting_randomly() else self.act
            if self._on_policy:
                self._learn()
            before = self._memory
            action, self._memory, self._act_key = act(
                self.learning.policy(), self._memory, self._block, self._act_key
            )
            if self._on_policy:
                _watch(action)
            else:
                self._learn()
            action = np.asarray(action)
            action = action.reshape(-1, *action.shape[2:])
            step = self._envs.step(action)
            self._tally.count(step)
            self._open_actions.note(action, step.last)
            self._block = self._pack(action, step, before)
            self.position.iterations += 1

    def _acting_randomly(self) -> bool:
        return self.cadence.random(self.position.iterations)

    def _learn(self) -> None:
        """Have the previous step added and the updates it owes done; returns at once.

        Steps of a rollout wait for its last one: one call takes them all."""
        count = self.cadence.updates_after(self.position.iterations - 1)
        if self._on_policy and not count:
            self._waiting.append(self._block)
            return
        rollout = [*self._waiting, self._block]
        self._waiting.clear()
        if len(rollout) > 1 and len(rollout) == self.cadence.block_iterations:
            self._hand_over(np.stack(rollout, axis=1), count, self.steps)
        else:  # the first one, which begins with a reset
            for block in rollout[:-1]:
                self._hand_over(block, 0, self.steps)
            self._hand_over(rollout[-1], count, self.steps)
        self.position.updates += count

    def _hand_over(self, block: np.ndarray, count: int, step: int) -> None:
        names, values = (), None
        if self.movement is not None:
            names, values = self.movement.names, self.movement.at(step)
        self.learning.learn(block, count, names, values)

    def _pack(self, action: np.ndarray, step: HostStep, memory: Tree) -> np.ndarray:
        facts = step._asdict() | {"observation": self._seen, "action": action}
        del facts["descriptor"]  # nothing learns from it
        if isinstance(memory, Memory):
            facts["memory"] = self._remembered(memory)
        self._seen, first = step.observation, step.last | ~step.valid
        return self._blocks(facts | {"seen": step.observation, "first": first})

    def _remembered(self, memory: Memory) -> np.ndarray:
        """What was remembered before the step at hand: nothing where an episode began."""
        hidden = np.asarray(memory.hidden)
        first = self._parcel.read(self._block, "first")["first"]
        return np.where(first[:, None], np.float32(0), hidden.reshape(-1, hidden.shape[-1]))

    def _pack_reset(self, observation: np.ndarray) -> np.ndarray:
        """No step yet, but something to act on."""
        self._seen = observation
        nothing = dict.fromkeys(self._fields, 0)
        return self._blocks(nothing | {"seen": observation, "first": True})

    def _blocks(self, facts: dict[str, Any]) -> np.ndarray:
        """As one block [K, N, bytes]."""
        members, num_envs = self.setting.num_seeds, self.setting.num_envs
        return self._parcel.pack(members * num_envs, facts).reshape(members, num_envs, -1)

    @property
    def learner(self) -> Learner:
        return self.learning.learner

    @learner.setter
    def learner(self, learner: Learner) -> None:
        self.learning.learner = learner

    @property
    def experience(self) -> Experience | HostReplay:
        return self.learning.experience

    @experience.setter
    def experience(self, experience: Experience | HostReplay) -> None:
        self.learning.experience = experience

    def restore(self, snapshot: Snapshot) -> None:
        super().restore(snapshot)
        self.learning.restart_counting(self.position.updates)

    def _put_world_back(self, world: Named) -> None:
        """Kept where it was, even if there would be more, or less, room elsewhere by now."""
        on_host = is_of_host(part_of(world, "experience"))
        if on_host != isinstance(self.experience, HostReplay):
            place = choose(self.setting, EVERYWHERE[1:] if on_host else EVERYWHERE[:1])
            self.experience = make(self.setting, place)
        super()._put_world_back(world)

    def _name_acting(self) -> Named:
        named = {"key": to_host(self._act_key), **under("tally", self._tally.named())}
        named |= under("memory", name_leaves(self._memory))
        if self._block is None:  # nothing has happened yet
            return named
        named["blocks"] = np.stack([*self._waiting, self._block])
        return named | under("environments", self._open_actions.named(self._envs))

    def _put_acting_back(self, acting: Named) -> None:
        device = self.learning.act_device
        self._memory = jax.device_put(put_back(self._memory, part_of(acting, "memory")), device)
        self._act_key = jax.device_put(put_back(self._act_key, {"": acting["key"]}), device)
        self._tally.put_back(part_of(acting, "tally"))
        if "blocks" not in acting:
            return
        *self._waiting, self._block = acting["blocks"]
        before = self._parcel.read(self._block)
        self._seen, lost = self._open_actions.bring_back(
            self._envs, part_of(acting, "environments"), before["seen"], before["action"]
        )
        if lost.any():  # the step that was seen last was an episode's last one
            now = {
                "seen": self._seen,
                "first": before["first"] | lost,
                "last": before["last"] | lost,
            }
            self._block = self._blocks(before | now)
            self._tally.forget(lost)

    def episodes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return self._tally.take()

    def faults(self) -> dict[str, int]:
        return self._envs.faults

    def close(self) -> None:
        self.learning.close()
        self._envs.close()


def _watch(array: Any) -> None:
    """Look for a result for a moment before sleeping until it comes: being woken takes longer than
    a small network's acting. Only where nothing else could use the core meanwhile."""
    for _ in range(MOST_LOOKS):
        if array.is_ready():
            return


def act_program(setting: Setting, parcel: Parcel, learning: Learning, random: bool) -> Any:
    """The compiled act program, lifted over members."""

    def act(policy: Tree, memory: Tree, block: Array, key: Key):
        key, draw_key = jax.random.split(key)
        if random and not isinstance(memory, Memory):
            return uniform_actions(setting.spec, setting.num_envs, draw_key), memory, key
        report = parcel.unpack(block)
        action, memory, _ = setting.algorithm.act(
            learning.form.read_policy(policy),
            memory,
            report["seen"],
            report["first"],
            draw_key,
            True,
        )
        if random:  # but what was seen is remembered
            action = uniform_actions(setting.spec, setting.num_envs, draw_key)
        return action, memory, key

    return jax.jit(over_members(act, setting.num_seeds))


def _block_fields(spec: Spec, memory: int) -> dict[str, ArraySpec]:
    """What one environment reports: a step, and what is seen after it; and what the agent, if it
    does, remembered before."""
    flag = ArraySpec((), "bool")
    remembered = {"memory": ArraySpec((memory,))} if memory else {}
    return remembered | {
        "observation": spec.observation,
        "action": spec.action.stored,
        "reward": ArraySpec(()),
        "terminated": flag,
        "last": flag,
        "next_observation": spec.observation,
        "valid": flag,
        "seen": spec.observation,
        "first": flag,
    }
