"""The collector of the host loop: acts, steps the environments, and records what happened.

A collector is the same object in the learner's process and in a process of its own: it needs a
policy, and returns chunks of steps. Where the environments can be stepped in parts, the next
actions of each part are computed while the others are stepped.
"""

import dataclasses
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple, final

import jax
import numpy as np
from jaxtyping import Array

from understudy.algorithms.base import Memory
from understudy.envs.base import HostEnvs, HostStep
from understudy.envs.episode_info import EpisodeInfo
from understudy.state_dict import StateDict, add_prefix, load_state_dict, select_prefix, state_dict
from understudy.training.actions import choose_actions, initial_memory
from understudy.training.open_episodes import EpisodeTally, OpenActions
from understudy.training.program_cache import shared
from understudy.training.seed_axis import ACTING, fold_in, over_seeds, seed_keys
from understudy.training.setup import TrainingSetup
from understudy.training.step_packing import (
    EXTRA,
    RECURRENT_STATE,
    acting_dtype,
    as_bytes,
    pack_rows,
    step_dtype,
    unpack_rows,
)
from understudy.types import Key, Tree

MOST_POLLS, FEW_POLLS = 5_000, 200  # about half a millisecond; about 20 microseconds


class Acted(NamedTuple):
    """Computed actions, and what is recorded with them."""

    action: Any  # [K, N, ...]
    extras: dict[str, Array]
    memory: Tree  # before the step


@final
class Actor:
    """Computes the actions of some of the seeds."""

    def __init__(
        self, setup: TrainingSetup, seeds: slice, policy: Any, read_policy: Callable[[Tree], Any],
        device: Any, stream: int = 0, lasting: bool = False,
    ):  # fmt: skip
        """`policy` [seeds, ...] has the shapes of policies. Acting takes policies in any form;
        `read_policy` makes one seed's policy of it inside a program: when a policy is `lasting`,
        used for several acts, once; otherwise in each act."""
        count, first = seeds.stop - seeds.start, setup.seed + seeds.start
        own = dataclasses.replace(setup, seed=first, num_seeds=count).unseeded
        self._read: Callable[[Tree], list[Array]] | None = None
        if lasting:
            part = None if count == setup.num_seeds else (seeds.start, seeds.stop)
            self._read = read_program(own, part, read_policy)
            read_policy = FromLeaves(jax.tree.structure(policy))
        self.programs = {random: act_program(own, read_policy, random) for random in (False, True)}
        keys = seed_keys(first, count, ACTING)
        if stream:
            keys = fold_in(keys, stream)
        policy = jax.tree.map(lambda x: x[seeds], policy)
        memory = initial_memory(setup.algorithm, policy, count, setup.num_envs)
        self.device = device
        # Committed to where acting happens: the act programs follow them there.
        self.memory, self.key = jax.device_put((memory, keys), device)
        self.policy: Tree = None  # in the form that acting takes
        self.acted: Acted | None = None  # the next actions, if they are computed already

    def use_policy(self, policy: Tree) -> None:
        """Act with this policy of all seeds from now on."""
        self.policy = policy if self._read is None else self._read(policy)

    def act(self, seen: np.ndarray, random: bool) -> None:
        """Start to compute the next actions for rows [K, N] of observations. Returns at once."""
        before = self.memory
        action, extras, self.memory, self.key = self.programs[random](
            self.policy, before, as_bytes(seen), self.key
        )
        self.acted = Acted(action, extras, before)

    def take(self, poll: bool) -> Acted:
        """Wait for the computed actions. Poll a few times before sleeping: waking up takes longer
        than acting with a small network. With `poll`, many times: only where nothing else could use
        the core."""
        acted, self.acted = self.acted, None
        assert acted is not None, "act comes before step"
        for _ in range(MOST_POLLS if poll else FEW_POLLS):
            if acted.action.is_ready():
                break
        return acted


class FromLeaves(NamedTuple):
    """Makes one seed's policy of its leaves. Equal ones share compiled programs."""

    structure: Any

    def __call__(self, leaves: list[Array]) -> Any:
        return jax.tree.unflatten(self.structure, leaves)


@shared
def act_program(setup: TrainingSetup, read_policy: Callable[[Tree], Any], random: bool) -> Any:
    """The compiled act program, lifted over seeds."""
    algorithm, spec, rows = setup.algorithm, setup.spec, acting_dtype(setup.spec)

    def act(policy: Tree, memory: Tree, data: Array, key: Key):
        key, draw_key = jax.random.split(key)
        seen, policy = unpack_rows(rows, data), read_policy(policy)
        action, memory, extras = choose_actions(
            algorithm, spec, policy, memory, seen["observation"], seen["first"], draw_key, random
        )
        return action, extras, memory, key

    return jax.jit(over_seeds(act, setup.num_seeds))


@shared
def read_program(
    setup: TrainingSetup, part: tuple[int, int] | None, read_policy: Callable[[Tree], Any]
) -> Callable[[Tree], list[Array]]:
    """The compiled program that makes leaves [seeds, ...] of the policy that acting receives, of a
    part of its seeds if one is given."""

    def read(policy: Tree) -> list[Array]:
        return jax.tree.leaves(read_policy(policy))

    lifted, own = over_seeds(read, setup.num_seeds), slice(*part) if part else slice(None)
    return jax.jit(lambda policy: lifted(jax.tree.map(itemgetter(own), policy)))


class Happened(NamedTuple):
    """One step of all parts."""

    before: np.ndarray  # rows [K, N] that were acted on
    acted: list[Acted]
    actions: list[np.ndarray]
    steps: list[HostStep]
    infos: dict[int, EpisodeInfo]  # of the episodes that it ended


@final
class Collector:
    """K seeds on K × N Gymnasium environments."""

    def __init__(
        self, setup: TrainingSetup, envs: HostEnvs, policy: Any, read_policy: Callable[[Tree], Any],
        device: Any, stream: int = 0, lasting: bool = False,
    ):  # fmt: skip
        """For `policy`, `read_policy` and `lasting` see `Actor`. Collectors of one run draw their
        noise from different streams. With `lasting` policies the environments may be stepped in
        parts."""
        self.setup, self.envs = setup, envs
        self.step_dtype = step_dtype(setup.algorithm, setup.spec)
        self.acting_dtype = acting_dtype(setup.spec)
        num_seeds, num_envs = self.axes = (setup.num_seeds, setup.num_envs)
        rows = envs.divide(num_envs) if lasting else [slice(0, envs.num_envs)]
        self.parts = [slice(one.start // num_envs, one.stop // num_envs) for one in rows]
        self.actors = [
            Actor(setup, part, policy, read_policy, device, stream, lasting) for part in self.parts
        ]
        self.tally = EpisodeTally(num_seeds, num_envs)
        self.open_actions = OpenActions(num_seeds * num_envs)
        self.seen: Any = None  # rows [K, N] to act on next; None before the first reset
        self.record: list[np.ndarray] = []  # [K, N] rows of the chunk at hand, one for each step
        self._unrecorded: Happened | None = None

    def begin(self) -> None:
        """Start the first episodes, unless they have begun."""
        if self.seen is None:
            self.set_observation(self.envs.reset(), True)

    def use_policy(self, policy: Tree) -> None:
        """Act with this policy from now on."""
        for actor in self.actors:
            actor.use_policy(policy)

    def act(self, random: bool) -> None:
        """Start to compute the next actions; returns at once."""
        for actor, part in zip(self.actors, self.parts, strict=True):
            actor.act(self.seen[part], random)

    @property
    def has_acted(self) -> bool:
        """Whether the next actions are computed already."""
        return self.actors[0].acted is not None

    def step(self, poll: bool = False, act_next: bool = False, random: bool = False) -> None:
        """Step with the computed actions, and record the steps. With `act_next`, also start to
        compute the actions after them, part by part. For `poll` see `Actor`."""
        acted, actions, steps = [], [], []
        for place, actor in enumerate(self.actors):
            acted.append(actor.take(poll))
            action = np.asarray(acted[-1].action)
            actions.append(action.reshape(-1, *action.shape[2:]))
            self.envs.send(actions[-1], place)
        self._record_unrecorded()
        before, self.seen = self.seen, np.empty(self.axes, self.acting_dtype)
        for place, (actor, part) in enumerate(zip(self.actors, self.parts, strict=True)):
            steps.append(step := self.envs.receive(place))
            first = step.last if 0 not in step.valid.tobytes() else step.last | ~step.valid
            self._write_observation(self.seen[part], step.observation, first)
            if act_next:
                actor.act(self.seen[part], random)
        self._unrecorded = Happened(before, acted, actions, steps, self.envs.take_infos())
        if not act_next or len(self.parts) == 1:
            self._record_unrecorded()

    def _record_unrecorded(self) -> None:
        """Record the latest step. Between two steps in parts the workers would wait for this, so it
        is done after the next actions are sent."""
        if self._unrecorded is None:
            return
        (before, acted, actions, steps, infos), self._unrecorded = self._unrecorded, None
        step, action = join_steps(steps), join(actions)
        self.tally.add(step, infos)
        self.open_actions.add(action, step.last)
        self.record.append(self._rows_of(before, action, step, acted))

    def take_chunk(self) -> np.ndarray:
        """The steps since the last call, as rows [K, time, N]."""
        record, self.record = self.record, []
        if len(record) == 1:
            return record[0][:, None]
        # As bytes: NumPy compares all fields before it stacks rows.
        return np.stack([as_bytes(rows) for rows in record], axis=1).view(self.step_dtype)[..., 0]

    def collect(self, policy: Tree, random: bool, iterations: int) -> np.ndarray:
        """That many steps of every environment by one policy, as rows [K, time, N]."""
        self.begin()
        self.use_policy(policy)
        self.act(random)
        for left in reversed(range(iterations)):
            self.step(act_next=left > 0, random=random)
        return self.take_chunk()

    def _rows_of(
        self, before: np.ndarray, action: np.ndarray, step: HostStep, acted: list[Acted]
    ) -> np.ndarray:
        # Fresh rows each time: on the CPU the device may read them in place, and later.
        rows, seen = np.empty(len(action), self.step_dtype), before.reshape(-1)
        rows["observation"], rows["action"] = seen["observation"], action
        rows["reward"], rows["terminated"] = step.reward, step.terminated
        rows["last"], rows["valid"] = step.last, step.valid
        rows["next_observation"] = step.next_observation
        if isinstance(acted[0].memory, Memory):  # nothing is remembered where an episode begins
            state = join([np.asarray(one.memory.recurrent_state) for one in acted])
            state = state.reshape(-1, state.shape[-1])
            rows[RECURRENT_STATE] = np.where(seen["first"][:, None], np.float32(0), state)
        for name in acted[0].extras:
            rows[EXTRA + name] = join([np.asarray(one.extras[name]) for one in acted]).ravel()
        return rows.reshape(self.axes)

    def set_observation(self, observation: np.ndarray, first: Any) -> None:
        """Act on these observations [K·N, ...] next; `first` marks episodes that begin."""
        self.seen = np.empty(self.axes, self.acting_dtype)
        self._write_observation(self.seen, observation, first)

    def _write_observation(self, part: np.ndarray, observation: np.ndarray, first: Any) -> None:
        rows = part.reshape(-1)
        rows["observation"], rows["first"] = observation, first

    def state_dict(self) -> StateDict:
        """Random keys, recurrent states, open episodes and the chunk at hand, by name: the same
        for any number of parts."""
        arrays = state_dict({"key": join([actor.key for actor in self.actors])})
        arrays |= add_prefix("tally", self.tally.state_dict())
        arrays |= add_prefix("memory", state_dict(join([actor.memory for actor in self.actors])))
        if self.seen is None:  # nothing has happened yet
            return arrays
        fields = self.acting_dtype.names or ()
        arrays |= add_prefix("seen", {name: self.seen[name].copy() for name in fields})
        if self.record:
            chunk, fields = np.stack(self.record), self.step_dtype.names or ()
            arrays |= add_prefix("chunk", {name: chunk[name] for name in fields})
        return arrays | add_prefix("environments", self.open_actions.state_dict(self.envs))

    def load_state_dict(self, arrays: StateDict) -> None:
        """Continue from a `state_dict`. Environments repeat the actions of open episodes."""
        actors = self.actors
        memory = join([actor.memory for actor in actors])
        memory = load_state_dict(memory, select_prefix(arrays, "memory"))
        key = load_state_dict(join([actor.key for actor in actors]), {"": arrays["key"]})
        for actor, part in zip(actors, self.parts, strict=True):
            own = jax.tree.map(itemgetter(part), (memory, key))
            actor.memory, actor.key = jax.device_put(own, actor.device)
        self.tally.load_state_dict(select_prefix(arrays, "tally"))
        seen, chunk = select_prefix(arrays, "seen"), select_prefix(arrays, "chunk")
        if not seen:
            return
        if chunk:
            self.record = list(pack_rows(self.step_dtype, chunk))
        before = pack_rows(self.acting_dtype, seen).reshape(-1)
        spec = self.setup.spec.action.stored
        action = np.zeros((len(before), *spec.shape), spec.dtype)
        observation, lost = self.open_actions.load_state_dict(
            self.envs, select_prefix(arrays, "environments"), before["observation"], action
        )
        self.set_observation(observation, before["first"] | lost)
        if lost.any():
            self.tally.reset(lost)
            if self.record:  # the latest step was its episode's last one
                self.record[-1]["last"] |= lost.reshape(self.axes)


def join(parts: list[Any]) -> Any:
    """Concatenate the trees of parts of the seeds, on the host."""
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *x: np.concatenate(x), *parts)


def join_steps(parts: list[HostStep]) -> HostStep:
    """The same of steps, without the time that trees take."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*parts, strict=True)
    return HostStep._make(None if one[0] is None else np.concatenate(one) for one in columns)
