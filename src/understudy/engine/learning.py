"""The learning half of the host loop: steps go in, updates happen beside the environments' step.

On the CPU a program runs asynchronously by itself, and acting reads the learner's own arrays. On
an accelerator it is the border that takes time (on an H200: about 4 µs for each buffer of a call,
of which SAC has 59, and 150 µs for a small transfer; the update itself takes 120). So there

- the learner crosses packed into one vector per dtype,
- the program leaves the new policy in the host's own (pinned) memory,
- a thread makes the call while the environments step, and acting happens on the host.

Where the host keeps replay, steps are added and batches drawn by whoever makes the call.
"""

import abc
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array

from understudy.algorithms.base import Algorithm
from understudy.engine import fragments
from understudy.engine.feeding import Experience, add, fill, with_priorities
from understudy.engine.fragments import Fragment, widen_on_host
from understudy.engine.keeping import HostReplay
from understudy.engine.members import over_members
from understudy.engine.packing import Parcel
from understudy.engine.programs import shared
from understudy.engine.spreading import divides_rows, shared_by_all
from understudy.engine.updates import Learner, move, observe, observe_all, updates
from understudy.experience.drawn import Drawn
from understudy.types import Transition, Tree

MOST_PHASES = 4  # of delayed updates, that are worth a program each
Block = np.ndarray | Fragment
LARGEST_TOGETHER = 4_096  # numbers of a leaf that travels with others; larger ones are dear to copy


class Call(NamedTuple):
    """What one call of the learn program is compiled for."""

    count: int  # updates
    phase: int | None  # a single update's place in the pattern of delayed parts, if worth it
    moving: tuple[str, ...]  # the hyper-parameters that follow a schedule


@final
class Shapes:
    """A tree of arrays without their values, comparable and hashable."""

    def __init__(self, tree: Any):
        self.tree = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
        leaves, structure = jax.tree.flatten(self.tree)
        self._identity = (structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shapes) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


class Form(abc.ABC):
    """How a learner is held between programs, and how its policy travels."""

    @abc.abstractmethod
    def pack(self, learner: Learner) -> Tree: ...

    @abc.abstractmethod
    def unpack(self, packed: Tree) -> Learner: ...

    @abc.abstractmethod
    def send_policy(self, packed: Tree) -> Tree:
        """The policy as a program's output, for acting elsewhere; None where acting reads the
        learner itself. Called inside the learn program."""

    @abc.abstractmethod
    def receive_policy(self, sent: Tree, packed: Tree) -> Tree:
        """What acting takes, out of what was sent or out of the learner."""

    @abc.abstractmethod
    def read_policy(self, received: Tree) -> Any:
        """One member's policy out of that. Called inside the act program."""

    @abc.abstractmethod
    def policy_leaves(self, received: Tree) -> list[Any]:
        """All members' policy as its leaves in their order, [K, ...] each: what can be sent far."""


class Parts(NamedTuple):
    """A learner between programs on the CPU."""

    alone: list[Array]  # what acting reads, and what is large
    together: dict[str, Array]  # [K, numbers] per dtype: all the small rest


@final
class Leaves(Form):
    """Leaves without their modules, because taking modules apart and putting them together at
    every call costs Python more time than a small network's update takes. A call also takes more
    than a microsecond for each of its buffers, so the small ones travel together."""

    def __init__(self, algorithm: Algorithm, learner: Learner):
        leaves, self._structure = jax.tree.flatten(learner)
        numbers = jax.tree.unflatten(self._structure, range(len(leaves)))
        read, self._policy = jax.tree.flatten(algorithm.policy(numbers.state))
        sizes = [math.prod(leaf.shape[1:]) for leaf in leaves]
        small = [n for n, size in enumerate(sizes) if size <= LARGEST_TOGETHER]
        self._together = [n for n in small if n not in read]
        self._alone = [n for n in range(len(leaves)) if n not in self._together]
        self._places = [self._alone.index(n) for n in read]
        self._layout = Layout([leaves[n] for n in self._together])

    def pack(self, learner: Learner) -> Parts:
        leaves = jax.tree.leaves(learner)
        together = self._layout.join([leaves[n] for n in self._together])
        return Parts([leaves[n] for n in self._alone], together)

    def unpack(self, packed: Parts) -> Learner:
        leaves = dict(zip(self._alone, packed.alone, strict=True))
        leaves |= zip(self._together, self._layout.split(packed.together), strict=True)
        return jax.tree.unflatten(self._structure, [leaves[n] for n in sorted(leaves)])

    def send_policy(self, packed: Parts) -> None:
        return None

    def receive_policy(self, sent: None, packed: Parts) -> list[Array]:
        return [packed.alone[place] for place in self._places]

    def read_policy(self, received: list[Array]) -> Any:
        return jax.tree.unflatten(self._policy, received)

    def policy_leaves(self, received: list[Array]) -> list[Array]:
        return received


@final
class Vectors(Form):
    """One array [K, numbers] per dtype, for the learner and for its policy."""

    def __init__(self, algorithm: Algorithm, learner: Learner, can_pin: bool):
        self._algorithm = algorithm
        self._learner = Layout(learner)
        self._policy = Layout(algorithm.policy(learner.state))
        self._can_pin = can_pin

    def pack(self, learner: Learner) -> dict[str, Array]:
        return self._learner.join(learner)

    def unpack(self, packed: dict[str, Array]) -> Learner:
        return self._learner.split(packed)

    def send_policy(self, packed: dict[str, Array]) -> dict[str, Array]:
        policy = self._policy.join(self._algorithm.policy(self.unpack(packed).state))
        return jax.device_put(policy, jax.memory.Space.Host) if self._can_pin else policy

    def receive_policy(self, sent: dict[str, Array], packed: Tree) -> dict[str, np.ndarray]:
        return {dtype: np.asarray(vector) for dtype, vector in sent.items()}

    def read_policy(self, received: dict[str, Array]) -> Any:
        return self._policy.split(received, without_member_axis=True)

    def policy_leaves(self, received: dict[str, Array]) -> list[Array]:
        return jax.tree.leaves(self._policy.split(received))


@final
class Layout:
    """Where the leaves of a tree with a member axis lie in one vector per dtype."""

    def __init__(self, tree: Tree):
        leaves, self._structure = jax.tree.flatten(tree)
        self._shapes = [leaf.shape for leaf in leaves]
        self._dtypes = [str(leaf.dtype) for leaf in leaves]

    def join(self, tree: Tree) -> dict[str, Array]:
        rows: dict[str, list[Array]] = {}
        for leaf, dtype in zip(jax.tree.leaves(tree), self._dtypes, strict=True):
            rows.setdefault(dtype, []).append(leaf.reshape(leaf.shape[0], -1))
        return {dtype: jnp.concatenate(parts, axis=1) for dtype, parts in rows.items()}

    def split(self, vectors: dict[str, Array], without_member_axis: bool = False) -> Tree:
        leaves, used = [], dict.fromkeys(vectors, 0)
        for shape, dtype in zip(self._shapes, self._dtypes, strict=True):
            start, size = used[dtype], math.prod(shape[1:])
            wanted = shape[1:] if without_member_axis else shape
            leaves.append(vectors[dtype][..., start : start + size].reshape(wanted))
            used[dtype] += size
        return jax.tree.unflatten(self._structure, leaves)


@final
class Learning:
    """Holds learner and experience; adds steps and updates, one call ahead of the environments."""

    def __init__(
        self,
        algorithm: Algorithm,
        parcel: Parcel,
        learner: Learner,
        experience: Experience | HostReplay,
        accelerated: bool | None = None,
    ):
        """`accelerated` is found out from where the learner is, unless given."""
        self._sharding = learner.state.key.sharding
        first, *others = self._sharding.device_set
        if accelerated is None:  # or spread: acting is not, and cannot read a part of the learner
            accelerated = bool(others) or first.platform != "cpu"
        self.act_device = jax.local_devices(backend="cpu")[0] if accelerated else first
        self.form = _form(algorithm, bool(accelerated), _can_pin(self._sharding), Shapes(learner))
        self._thread = ThreadPoolExecutor(1, "understudy-learner") if accelerated else None
        self._pending: Future[None] | None = None
        self._pack, self._unpack, self._send = _form_programs(self.form)
        self.learner, self.experience = learner, experience
        self._period = algorithm.due_period
        self.restart_counting(0)
        self._parcel, members = parcel, len(learner.state.key)
        self._observes = any(part is not None for part in learner.state.running)
        told = (self.form, algorithm, parcel, members, self._sharding)
        self.program = _learn_program(_add_and_learn, (0, 1, 3), *told)
        self.program_of_drawn = _learn_program(_learn_drawn, (0, 3), *told)

    def learn(
        self, block: Block, count: int, moving: tuple[str, ...], moved: np.ndarray | None
    ) -> None:
        """Add a packed step [K, N, bytes] (or a whole rollout, [K, time, N, bytes], or a fragment
        from afar), move the hyper-parameters named to the values [K, names], and do `count`
        updates; returns at once, or, where replay is on the host and there is no other thread,
        when it has drawn."""
        self._settle()
        on_host = isinstance(self._experience, HostReplay)
        call = self._learn_from_host if on_host else self._learn_on_device
        if self._thread is None:
            call(block, count, moving, moved)
        else:
            self._pending = self._thread.submit(call, block, count, moving, moved)

    def _learn_on_device(
        self, block: Block, count: int, moving: tuple[str, ...], moved: np.ndarray | None
    ) -> None:
        self._experience, sent = self._run(
            self.program, self._experience, block, count, moving, moved
        )
        self._policy = self.form.receive_policy(sent, self._packed)

    def _learn_from_host(
        self, block: Block, count: int, moving: tuple[str, ...], moved: np.ndarray | None
    ) -> None:
        """The same, of replay that is on the host. The device is given the step only where it keeps
        statistics of what was seen, and is left alone where there is nothing for it to do."""
        replay: Any = self._experience
        if isinstance(block, Fragment):
            for report in widen_on_host(self._parcel.read(block.blocks), replay.lanes, block):
                replay.add(report)
        else:
            replay.add(self._parcel.read(block))
        seen = block if self._observes else None
        while count or seen is not None or moving:
            drawn, now = replay.draw(self._done, count) if count else (None, 0)
            # Drawing goes on beside the program before this one, but not further ahead of it.
            jax.block_until_ready(self._index)
            _, sent = self._run(self.program_of_drawn, drawn, seen, now, moving, moved)
            count, seen, moving, moved = count - now, None, (), None
            if not count:
                self._policy = self.form.receive_policy(sent, self._packed)

    def _run(
        self, program: Any, given: Tree, block: Block | None, count: int,
        moving: tuple[str, ...], moved: np.ndarray | None,
    ) -> tuple[Any, Tree]:  # fmt: skip
        single = count == 1 and self._period <= MOST_PHASES
        call = Call(count, self._done % self._period if single else None, moving)
        self._packed, left, self._index, sent = program(
            self._packed, given, block, self._index, moved, call
        )
        self._done += count
        return left, sent

    def policy(self) -> Tree:
        """What the act program takes: the policy after every update asked for so far."""
        self._settle()
        return self._policy

    def _settle(self) -> None:
        """Until the thread is done: only then may its arrays be touched."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    @property
    def learner(self) -> Learner:
        self._settle()
        return self._unpack(self._packed)

    @learner.setter
    def learner(self, learner: Learner) -> None:
        self._settle()
        # Committed to its devices: the thread does not see the caller's default one.
        self._packed = self._pack(jax.device_put(learner, self._sharding))
        self._policy = self.form.receive_policy(self._send(self._packed), self._packed)

    @property
    def experience(self) -> Experience | HostReplay:
        self._settle()
        return self._experience

    @experience.setter
    def experience(self, experience: Experience | HostReplay) -> None:
        self._settle()
        on_host = isinstance(experience, HostReplay)
        self._experience = experience if on_host else jax.device_put(experience, self._sharding)

    def restart_counting(self, updates_done: int) -> None:
        """Set the index of the next update."""
        self._settle()
        # Twice: on the host to choose a program, on the device because a transfer is dear.
        self._done = updates_done
        self._index = jax.device_put(np.int32(updates_done), shared_by_all(self._sharding))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()


def _add_and_learn(
    algorithm: Algorithm, parcel: Parcel, call: Call, learner: Learner, experience: Experience,
    block: Array | Fragment, index: Array, moved: Tree,
) -> tuple[Learner, Experience]:  # fmt: skip
    """One member's share of a call."""
    learner = move(learner, {name: moved[place] for place, name in enumerate(call.moving)})
    if isinstance(block, Fragment):
        step, valid, memory = _reported(parcel, block.blocks)
        experience = fragments.add_all(experience, step, valid, memory, block.lane)
    else:
        step, valid, memory = _reported(parcel, block)
        put = add if block.ndim == 2 else fill  # of [envs, bytes], or of [time, envs, bytes]
        experience = put(experience, step, valid, memory)
    learner = _observe(algorithm, learner, step, valid, block)
    if call.count:
        first = index if call.phase is None else call.phase
        learner, priorities = updates(algorithm, learner, experience, first, call.count)
        experience = with_priorities(experience, priorities)
    return learner, experience


def _learn_drawn(
    algorithm: Algorithm, parcel: Parcel, call: Call, learner: Learner, drawn: Drawn | None,
    block: Array | Fragment | None, index: Array, moved: Tree,
) -> tuple[Learner, None]:  # fmt: skip
    """One member's share of a call, of what the host has added and drawn."""
    learner = move(learner, {name: moved[place] for place, name in enumerate(call.moving)})
    if block is not None:
        packed = block.blocks if isinstance(block, Fragment) else block
        step, valid, _ = _reported(parcel, packed)
        learner = _observe(algorithm, learner, step, valid, block)
    if drawn is not None:
        first = index if call.phase is None else call.phase
        learner, _ = updates(algorithm, learner, drawn, first, call.count)
    return learner, None


def _observe(
    algorithm: Algorithm, learner: Learner, step: Transition, valid: Array, block: Array | Fragment
) -> Learner:
    if isinstance(block, Fragment):
        return fragments.observe_all(algorithm, learner, step, valid, block.lane)
    return (observe if valid.ndim == 1 else observe_all)(algorithm, learner, step, valid)


def _reported(parcel: Parcel, block: Array) -> tuple[Transition, Array, Array | None]:
    report = parcel.unpack(block)
    step = Transition(**{name: report[name] for name in Transition._fields})
    return step, report["valid"], report.get("memory")


def _can_pin(sharding: Sharding) -> bool:
    """Whether programs there can write to the host's memory directly."""
    device, *others = sharding.device_set
    if others:
        return False
    kinds = {memory.kind for memory in device.addressable_memories()}
    return device.platform != "cpu" and "pinned_host" in kinds


@shared
def _form(algorithm: Algorithm, accelerated: bool, can_pin: bool, learner: Shapes) -> Form:
    if accelerated:
        return Vectors(algorithm, learner.tree, can_pin)
    return Leaves(algorithm, learner.tree)


@shared
def _form_programs(form: Form) -> tuple[Any, Any, Any]:
    return jax.jit(form.pack), jax.jit(form.unpack), jax.jit(form.send_policy)


@shared
def _learn_program(
    one: Callable[..., Any], donated: tuple[int, ...], form: Form, algorithm: Algorithm,
    parcel: Parcel, members: int, sharding: Sharding,
) -> Any:  # fmt: skip
    """One call of learning: `one` member's share of it, lifted over all of them."""

    def learn(packed: Tree, given: Tree, block: Tree, index: Array, moved: Tree, call: Call):
        lifted = over_members(partial(one, algorithm, parcel, call), members, shared=(3,))
        learner, left = lifted(form.unpack(packed), given, block, index, moved)
        packed = form.pack(learner)
        return packed, left, index + call.count, form.send_policy(packed)

    all_alike = shared_by_all(sharding)
    return jax.jit(
        divides_rows(learn, sharding),
        donate_argnums=donated,
        static_argnums=5,
        out_shardings=(sharding, sharding, all_alike, None),
    )
