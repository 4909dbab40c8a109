"""The collector of the host loop: acts, steps the environments, and records what happened.

A collector is the same object beside the learner and in a process of its own: it needs a policy,
and gives chunks of steps.
"""

from collections.abc import Callable
from typing import Any, final

import jax
import numpy as np
from jaxtyping import Array

from understudy.algorithms.base import Memory
from understudy.envs.base import HostEnvs, HostStep
from understudy.state_dict import Named, name_leaves, part_of, put_back, to_host, under
from understudy.training.actions import initial_memory, uniform_actions
from understudy.training.open_episodes import EpisodeTally, OpenActions
from understudy.training.program_cache import shared
from understudy.training.seed_axis import ACTING, member_keys, over_members
from understudy.training.setup import Setting
from understudy.training.step_packing import (
    EXTRA,
    RECURRENT_STATE,
    acting_rows,
    as_bytes,
    extras_of,
    rows_of,
    step_rows,
)
from understudy.types import Key, Tree

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
        self._step_rows = step_rows(setting.algorithm, setting.spec).dtype
        self._acting_rows = acting_rows(setting.spec).dtype
        self._extras = extras_of(setting.algorithm)
        self.act_program = act_program(setting.unseeded, read_policy, random=False)
        self.random_program = act_program(setting.unseeded, read_policy, random=True)
        members, num_envs = setting.num_seeds, setting.num_envs
        self._axes = (members, num_envs)
        keys = member_keys(setting.seed, members, ACTING)
        if stream:
            keys = jax.vmap(jax.random.fold_in, (0, None))(keys, stream)
        memory = initial_memory(setting.algorithm, policy, members, num_envs)
        # Committed to where acting happens: the act programs follow them there.
        self.memory, self.key = jax.device_put((memory, keys), device)
        self._tally = EpisodeTally(members, num_envs)
        self._open_actions = OpenActions(members * num_envs)
        self._decided: Any = None  # actions and extras of the next step, and the memory before it
        self._observation: Any = None  # [K·N, ...] to act on next
        self._seen: Any = None  # the same as rows [K, N]; None before the first reset
        self.record: list[np.ndarray] = []  # [K, N] rows of the chunk at hand, one for each step

    def begin(self) -> None:
        """Start everyone's first episode, unless that has happened."""
        if self._seen is None:
            self._see(self._envs.reset(), True)

    @property
    def action(self) -> Array:
        """What was decided last, [K, N, ...]."""
        return self._decided[0]

    def act(self, policy: Tree, random: bool, wait: bool = False) -> None:
        """Have the next actions decided; returns at once, unless it is to `wait` for them."""
        program = self.random_program if random else self.act_program
        before = self.memory
        action, extras, self.memory, self.key = program(
            policy, self.memory, as_bytes(self._seen), self.key
        )
        self._decided = action, extras, before
        if wait:
            _look_for(action)

    def step(self) -> None:
        """Do what was decided, and record it."""
        action, extras, before = self._decided
        action = np.asarray(action)
        action = action.reshape(-1, *action.shape[2:])
        step = self._envs.step(action)
        self._tally.count(step)
        self._open_actions.note(action, step.last)
        self.record.append(self._rows_of(action, step, before, extras))
        self._see(step.observation, step.last | ~step.valid)

    def take_chunk(self) -> np.ndarray:
        """The steps since the last call, as rows [K, time, N]."""
        record, self.record = self.record, []
        if len(record) == 1:
            return record[0][:, None]
        # As bytes: NumPy compares all fields before it stacks rows.
        return np.stack([as_bytes(rows) for rows in record], axis=1).view(self._step_rows)[..., 0]

    def collect(self, policy: Tree, random: bool, iterations: int) -> np.ndarray:
        """That many steps of every environment by one policy, as rows [K, time, N]."""
        self.begin()
        for _ in range(iterations):
            self.act(policy, random)
            self.step()
        return self.take_chunk()

    def _rows_of(self, action: np.ndarray, step: HostStep, memory: Tree, extras: Any) -> np.ndarray:
        # Fresh rows each time: on the CPU the device may read them in place, and later.
        rows = np.empty(len(action), self._step_rows)
        rows["observation"], rows["action"] = self._observation, action
        rows["reward"], rows["terminated"] = step.reward, step.terminated
        rows["last"], rows["valid"] = step.last, step.valid
        rows["next_observation"] = step.next_observation
        if isinstance(memory, Memory):  # nothing is remembered where an episode begins
            hidden, first = np.asarray(memory.hidden), self._seen["first"].reshape(-1, 1)
            hidden = hidden.reshape(-1, hidden.shape[-1])
            rows[RECURRENT_STATE] = np.where(first, np.float32(0), hidden)
        for name in self._extras:
            rows[EXTRA + name] = np.asarray(extras[name]).reshape(-1)
        return rows.reshape(self._axes)

    def _see(self, observation: np.ndarray, first: Any) -> None:
        self._observation = observation
        seen = np.empty(len(observation), self._acting_rows)
        seen["observation"], seen["first"] = observation, first
        self._seen = seen.reshape(self._axes)

    def named(self) -> Named:
        """What acting and stepping have come to: random keys, memory, open episodes, and the chunk
        at hand."""
        named = {"key": to_host(self.key), **under("tally", self._tally.named())}
        named |= under("memory", name_leaves(self.memory))
        if self._seen is None:  # nothing has happened yet
            return named
        named |= under(
            "seen", {name: self._seen[name].copy() for name in self._acting_rows.fields or ()}
        )
        if self.record:
            chunk = np.stack(self.record)
            named |= under("chunk", {name: chunk[name] for name in self._step_rows.fields or ()})
        return named | under("environments", self._open_actions.named(self._envs))

    def put_back(self, named: Named) -> None:
        memory = put_back(self.memory, part_of(named, "memory"))
        key = put_back(self.key, {"": named["key"]})
        self.memory, self.key = jax.device_put((memory, key), self._device)
        self._tally.put_back(part_of(named, "tally"))
        seen, chunk = part_of(named, "seen"), part_of(named, "chunk")
        if not seen:
            return
        if chunk:
            self.record = list(rows_of(self._step_rows, chunk))
        before = rows_of(self._acting_rows, seen).reshape(-1)
        spec = self._setting.spec.action.stored
        action = np.zeros((len(before), *spec.shape), spec.dtype)
        observation, lost = self._open_actions.bring_back(
            self._envs, part_of(named, "environments"), before["observation"], action
        )
        self._see(observation, before["first"] | lost)
        if lost.any():
            self._tally.forget(lost)
            if self.record:  # the latest step was its episode's last one
                self.record[-1]["last"] |= lost.reshape(self._axes)

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
    algorithm, spec, num_envs = setting.algorithm, setting.spec, setting.num_envs
    rows, names = acting_rows(spec), extras_of(algorithm)

    def act(policy: Tree, memory: Tree, data: Array, key: Key):
        key, draw_key = jax.random.split(key)
        if random and not isinstance(memory, Memory):
            return uniform_actions(spec, num_envs, draw_key), {}, memory, key
        seen = rows.unpack(data)
        action, memory, extras = algorithm.act(
            read_policy(policy), memory, seen["observation"], seen["first"], draw_key, True
        )
        if random:  # but what was seen is remembered
            action = uniform_actions(spec, num_envs, draw_key)
        return action, {name: extras[name] for name in names}, memory, key

    return jax.jit(over_members(act, setting.num_seeds))
