"""The collecting half of the host loop: act, step the environments, say what happened.

A collector is the same object beside the learner and in a process of its own, far away: all that
it needs of the learner is a policy, and all that it gives is blocks of bytes, one a step.
"""

from collections.abc import Callable
from typing import Any, final

import jax
import numpy as np
from jaxtyping import Array

from understudy.algorithms.base import Memory
from understudy.envs.base import HostEnvs, HostStep
from understudy.training.actions import initial_memory, uniform_actions
from understudy.training.open_episodes import EpisodeTally, OpenActions
from understudy.training.program_cache import shared
from understudy.training.seed_axis import ACTING, member_keys, over_members
from understudy.training.setup import Setting
from understudy.training.snapshot import Named, name_leaves, part_of, put_back, to_host, under
from understudy.training.step_packing import Parcel
from understudy.types import ArraySpec, Key, Spec, Tree

MOST_LOOKS = 5_000  # about half a millisecond


@final
class Collector:
    """K members on K × N Gymnasium environments."""

    def __init__(
        self,
        setting: Setting,
        envs: HostEnvs,
        policy: Any,
        read_policy: Callable[[Tree], Any],
        device: Any,
        stream: int = 0,
    ):
        """`policy` [members, ...] says how large things are. Acting takes policies in any form, of
        which `read_policy` makes one member's inside the program. Collectors of one run draw their
        noise from different streams."""
        self._setting, self._envs, self._device = setting, envs, device
        self.fields = block_fields(setting)
        self.parcel = Parcel(self.fields)
        self._learned = Parcel(step_fields(setting)).size
        self.act_program = act_program(setting.unseeded, read_policy, random=False)
        self.random_program = act_program(setting.unseeded, read_policy, random=True)
        members, num_envs = setting.num_seeds, setting.num_envs
        keys = member_keys(setting.seed, members, ACTING)
        if stream:
            keys = jax.vmap(jax.random.fold_in, (0, None))(keys, stream)
        memory = initial_memory(setting.algorithm, policy, members, num_envs)
        # Committed to where acting happens: the act programs follow them there.
        self.memory, self.key = jax.device_put((memory, keys), device)
        self._tally = EpisodeTally(members, num_envs)
        self._open_actions = OpenActions(members * num_envs)
        self._action: Any = None  # what was decided and not yet done, and the memory before it
        self.block: Any = None  # the last step and what to act on next, packed

    def begin(self) -> None:
        """Start everyone's first episode, unless that has happened."""
        if self.block is None:
            self.block = self._pack_reset(self._envs.reset())

    def act(self, policy: Tree, random: bool, watch: bool = False) -> None:
        """Have the next actions decided; returns at once, unless it is to `watch` for them."""
        program = self.random_program if random else self.act_program
        before = self.memory
        action, self.memory, self.key = program(policy, self.memory, self.block, self.key)
        self._action = action, before
        if watch:
            _look_for(action)

    def step(self) -> np.ndarray:
        """Do what was decided; gives the new block, [K, N, bytes]."""
        action, before = self._action
        action = np.asarray(action)
        action = action.reshape(-1, *action.shape[2:])
        step = self._envs.step(action)
        self._tally.count(step)
        self._open_actions.note(action, step.last)
        self.block = self._pack(action, step, before)
        return self.block

    def collect(self, policy: Tree, random: bool, iterations: int) -> np.ndarray:
        """That many steps of every environment by one policy, [iterations, K, N, bytes] without
        what was to be acted on next: nobody far away needs it."""
        self.begin()
        blocks = []
        for _ in range(iterations):
            self.act(policy, random)
            blocks.append(self.step()[..., : self._learned])
        return np.stack(blocks)

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
        first = self.parcel.read(self.block, "first")["first"]
        return np.where(first[:, None], np.float32(0), hidden.reshape(-1, hidden.shape[-1]))

    def _pack_reset(self, observation: np.ndarray) -> np.ndarray:
        """No step yet, but something to act on."""
        self._seen = observation
        nothing = dict.fromkeys(self.fields, 0)
        return self._blocks(nothing | {"seen": observation, "first": True})

    def _blocks(self, facts: dict[str, Any]) -> np.ndarray:
        """As one block [K, N, bytes]."""
        members, num_envs = self._setting.num_seeds, self._setting.num_envs
        return self.parcel.pack(members * num_envs, facts).reshape(members, num_envs, -1)

    def named(self) -> Named:
        """What acting and stepping have come to: random keys, memory, open episodes."""
        named = {"key": to_host(self.key), **under("tally", self._tally.named())}
        named |= under("memory", name_leaves(self.memory))
        if self.block is None:  # nothing has happened yet
            return named
        named["block"] = self.block.copy()
        return named | under("environments", self._open_actions.named(self._envs))

    def put_back(self, named: Named) -> None:
        memory = put_back(self.memory, part_of(named, "memory"))
        key = put_back(self.key, {"": named["key"]})
        self.memory, self.key = jax.device_put((memory, key), self._device)
        self._tally.put_back(part_of(named, "tally"))
        if "block" not in named:
            return
        self.block = named["block"]
        before = self.parcel.read(self.block)
        self._seen, lost = self._open_actions.bring_back(
            self._envs, part_of(named, "environments"), before["seen"], before["action"]
        )
        if lost.any():  # the step that was seen last was an episode's last one
            now = {
                "seen": self._seen,
                "first": before["first"] | lost,
                "last": before["last"] | lost,
            }
            self.block = self._blocks(before | now)
            self._tally.forget(lost)

    def episodes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Per member: returns and lengths of the episodes that ended since the last call."""
        return self._tally.take()

    @property
    def faults(self) -> dict[str, int]:
        """What the environments did wrong and was survived, counted since the start."""
        return self._envs.faults

    def close(self) -> None:
        self._envs.close()


def _look_for(array: Any) -> None:
    """Look for a result for a moment before sleeping until it comes: being woken takes longer than
    a small network's acting. Only where nothing else could use the core meanwhile."""
    for _ in range(MOST_LOOKS):
        if array.is_ready():
            return


@shared
def act_program(setting: Setting, read_policy: Callable[[Tree], Any], random: bool) -> Any:
    """The compiled act program, lifted over members."""
    parcel = Parcel(block_fields(setting))

    def act(policy: Tree, memory: Tree, block: Array, key: Key):
        key, draw_key = jax.random.split(key)
        if random and not isinstance(memory, Memory):
            return uniform_actions(setting.spec, setting.num_envs, draw_key), memory, key
        report = parcel.unpack(block)
        action, memory, _ = setting.algorithm.act(
            read_policy(policy), memory, report["seen"], report["first"], draw_key, True
        )
        if random:  # but what was seen is remembered
            action = uniform_actions(setting.spec, setting.num_envs, draw_key)
        return action, memory, key

    return jax.jit(over_members(act, setting.num_seeds))


def step_fields(setting: Setting) -> dict[str, ArraySpec]:
    """What is learned from one environment's step; and what the agent, if it does, remembered
    before it."""
    spec: Spec = setting.spec
    memory = setting.algorithm.config.memory_width
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
    }


def block_fields(setting: Setting) -> dict[str, ArraySpec]:
    """The same, and at its end what is acted on next."""
    acted_on = {"seen": setting.spec.observation, "first": ArraySpec((), "bool")}
    return step_fields(setting) | acted_on
