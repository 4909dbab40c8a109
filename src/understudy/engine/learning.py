"""The learning half of the host loop: steps go in, updates happen beside the environments' step.

On the CPU a program runs asynchronously by itself, and acting reads the learner's own arrays. On
an accelerator it is the border that takes time (on an H200: about 4 µs for each buffer of a call,
of which SAC has 59, and 150 µs for a small transfer; the update itself takes 120). So there

- the learner crosses packed into one vector per dtype,
- the program leaves the new policy in the host's own (pinned) memory,
- a thread makes the call while the environments step, and acting happens on the host.
"""

import abc
import math
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from understudy.algorithms.base import Algorithm
from understudy.engine.feeding import Experience, add, fill, with_priorities
from understudy.engine.members import over_members
from understudy.engine.packing import Parcel
from understudy.engine.updates import Learner, move, observe, observe_all, updates
from understudy.types import Transition, Tree

MOST_PHASES = 4  # of delayed updates, that are worth a program each
LARGEST_TOGETHER = 4_096  # numbers of a leaf that travels with others; larger ones are dear to copy


class Call(NamedTuple):
    """What one call of the learn program is compiled for."""

    count: int  # updates
    phase: int | None  # a single update's place in the pattern of delayed parts, if worth it
    moving: tuple[str, ...]  # the hyper-parameters that follow a schedule


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
        small = [n for n, leaf in enumerate(leaves) if leaf[0].size <= LARGEST_TOGETHER]
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


@final
class Vectors(Form):
    """One array [K, numbers] per dtype, for the learner and for its policy."""

    def __init__(self, algorithm: Algorithm, learner: Learner):
        self._algorithm = algorithm
        self._learner = Layout(learner)
        self._policy = Layout(algorithm.policy(learner.state))
        self._can_pin = _can_pin(learner.state.key.devices().pop())

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
        experience: Experience,
        accelerated: bool | None = None,
    ):
        """`accelerated` is found out from where the learner is, unless given."""
        self._device = learner.state.key.devices().pop()
        if accelerated is None:
            accelerated = self._device.platform != "cpu"
        self.act_device = jax.devices("cpu")[0] if accelerated else self._device
        self.form: Form = (Vectors if accelerated else Leaves)(algorithm, learner)
        self._thread = ThreadPoolExecutor(1, "understudy-learner") if accelerated else None
        self._pending: Future[None] | None = None
        self._pack, self._unpack = jax.jit(self.form.pack), jax.jit(self.form.unpack)
        self._send = jax.jit(self.form.send_policy)
        self.learner, self.experience = learner, experience
        self._period = algorithm.due_period
        self.restart_counting(0)
        members = len(learner.state.key)

        def one(
            learner: Learner, experience: Experience, block: Array, index: Array, moved: Tree,
            call: Call,
        ):  # fmt: skip
            values = {name: moved[place] for place, name in enumerate(call.moving)}
            learner = move(learner, values)
            report = parcel.unpack(block)
            step = Transition(**{name: report[name] for name in Transition._fields})
            memory = report.get("memory")
            if block.ndim == 2:
                experience = add(experience, step, report["valid"], memory)
                learner = observe(algorithm, learner, step, report["valid"])
            else:  # [time, envs, bytes]
                experience = fill(experience, step, report["valid"], memory)
                learner = observe_all(algorithm, learner, step, report["valid"])
            if call.count:
                first = index if call.phase is None else call.phase
                learner, priorities = updates(algorithm, learner, experience, first, call.count)
                experience = with_priorities(experience, priorities)
            return learner, experience

        def learn(
            packed: Tree, experience: Experience, block: Array, index: Array, moved: Tree,
            call: Call,
        ):  # fmt: skip
            lifted = over_members(partial(one, call=call), members, shared=(3,))
            learner, experience = lifted(self.form.unpack(packed), experience, block, index, moved)
            packed = self.form.pack(learner)
            return packed, experience, index + call.count, self.form.send_policy(packed)

        self.program = jax.jit(learn, donate_argnums=(0, 1, 3), static_argnums=5)

    def learn(
        self, block: np.ndarray, count: int, moving: tuple[str, ...], moved: np.ndarray | None
    ) -> None:
        """Add a packed step [K, N, bytes] (or several, [K, time, N, bytes]), move the
        hyper-parameters named to the values [K, names], and do `count` updates; returns at once."""
        self._settle()
        single = count == 1 and self._period <= MOST_PHASES
        call = Call(count, self._done % self._period if single else None, moving)
        self._done += count
        if self._thread is None:
            self._call(block, moved, call)
        else:
            self._pending = self._thread.submit(self._call, block, moved, call)

    def _call(self, block: np.ndarray, moved: np.ndarray | None, call: Call) -> None:
        self._packed, self._experience, self._index, sent = self.program(
            self._packed, self._experience, block, self._index, moved, call
        )
        self._policy = self.form.receive_policy(sent, self._packed)

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
        # Committed to its device: the thread does not see the caller's default one.
        self._packed = jax.device_put(self._pack(learner), self._device)
        self._policy = self.form.receive_policy(self._send(self._packed), self._packed)

    @property
    def experience(self) -> Experience:
        self._settle()
        return self._experience

    @experience.setter
    def experience(self, experience: Experience) -> None:
        self._settle()
        self._experience = jax.device_put(experience, self._device)

    def restart_counting(self, updates_done: int) -> None:
        """Set the index of the next update."""
        self._settle()
        # Twice: on the host to choose a program, on the device because a transfer is dear.
        self._done = updates_done
        self._index = jax.device_put(jnp.int32(updates_done), self._device)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()


def _can_pin(device: Any) -> bool:
    """Whether programs on the device can write to the host's memory directly."""
    kinds = {memory.kind for memory in device.addressable_memories()}
    return device.platform != "cpu" and "pinned_host" in kinds
