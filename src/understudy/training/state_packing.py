"""The forms in which a learner's state is held between programs and a policy travels.

A first-time reader can skip this file: `Transport` says why there are two forms.
"""

import abc
import math
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array

from understudy.algorithms.base import Algorithm
from understudy.training.program_cache import shared
from understudy.training.update import LearnerState
from understudy.types import Tree

LARGEST_TOGETHER = 4_096  # numbers of a leaf that travels with others; larger ones are dear to copy


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
    def pack(self, learner: LearnerState) -> Tree: ...

    @abc.abstractmethod
    def unpack(self, packed: Tree) -> LearnerState: ...

    @abc.abstractmethod
    def send_policy(self, packed: Tree) -> Tree:
        """The policy as a program's output, for acting elsewhere; None where acting reads the
        learner itself. Called inside the learn program."""

    @abc.abstractmethod
    def receive_policy(self, sent: Tree, packed: Tree) -> Tree:
        """What acting takes, out of what was sent or out of the learner."""

    @abc.abstractmethod
    def lasting_policy(self, received: Tree, device: Any) -> Tree:
        """The same for several acts, in arrays of the device that no later program is given."""

    @abc.abstractmethod
    def read_policy(self, received: Tree) -> Any:
        """One seed's policy out of that. Called inside the act program."""

    @abc.abstractmethod
    def policy_leaves(self, received: Tree) -> list[Any]:
        """All seeds' policy as its leaves in their order, [K, ...] each: what can be sent far."""


class Parts(NamedTuple):
    """A learner between programs on the CPU."""

    alone: list[Array]  # what acting reads, and what is large
    together: dict[str, Array]  # [K, numbers] per dtype: all the small rest


@final
class Leaves(Form):
    """Leaves without their modules, because taking modules apart and putting them together at
    every call costs Python more time than a small network's update takes. A call also takes more
    than a microsecond for each of its buffers, so the small ones travel together."""

    def __init__(self, algorithm: Algorithm, learner: LearnerState):
        leaves, self._structure = jax.tree.flatten(learner)
        numbers = jax.tree.unflatten(self._structure, range(len(leaves)))
        read, self._policy = jax.tree.flatten(algorithm.policy(numbers.state))
        sizes = [math.prod(leaf.shape[1:]) for leaf in leaves]
        small = [n for n, size in enumerate(sizes) if size <= LARGEST_TOGETHER]
        self._together = [n for n in small if n not in read]
        self._alone = [n for n in range(len(leaves)) if n not in self._together]
        self._places = [self._alone.index(n) for n in read]
        self._layout = Layout([leaves[n] for n in self._together])

    def pack(self, learner: LearnerState) -> Parts:
        leaves = jax.tree.leaves(learner)
        together = self._layout.join([leaves[n] for n in self._together])
        return Parts([leaves[n] for n in self._alone], together)

    def unpack(self, packed: Parts) -> LearnerState:
        leaves = dict(zip(self._alone, packed.alone, strict=True))
        leaves |= zip(self._together, self._layout.split(packed.together), strict=True)
        return jax.tree.unflatten(self._structure, [leaves[n] for n in sorted(leaves)])

    def send_policy(self, packed: Parts) -> None:
        return None

    def receive_policy(self, sent: None, packed: Parts) -> list[Array]:
        return [packed.alone[place] for place in self._places]

    def lasting_policy(self, received: list[Array], device: Any) -> list[Array]:
        return [jax.device_put(leaf, leaf.sharding, may_alias=False) for leaf in received]

    def read_policy(self, received: list[Array]) -> Any:
        return jax.tree.unflatten(self._policy, received)

    def policy_leaves(self, received: list[Array]) -> list[Array]:
        return received


@final
class Vectors(Form):
    """One array [K, numbers] per dtype, for the learner and for its policy."""

    def __init__(self, algorithm: Algorithm, learner: LearnerState, can_pin: bool):
        self._algorithm = algorithm
        self._learner = Layout(learner)
        self._policy = Layout(algorithm.policy(learner.state))
        self._can_pin = can_pin

    def pack(self, learner: LearnerState) -> dict[str, Array]:
        return self._learner.join(learner)

    def unpack(self, packed: dict[str, Array]) -> LearnerState:
        return self._learner.split(packed)

    def send_policy(self, packed: dict[str, Array]) -> dict[str, Array]:
        policy = self._policy.join(self._algorithm.policy(self.unpack(packed).state))
        return jax.device_put(policy, jax.memory.Space.Host) if self._can_pin else policy

    def receive_policy(self, sent: dict[str, Array], packed: Tree) -> dict[str, np.ndarray]:
        return {dtype: np.asarray(vector) for dtype, vector in sent.items()}

    def lasting_policy(self, received: dict[str, Array], device: Any) -> dict[str, Array]:
        return jax.device_put(received, device)

    def read_policy(self, received: dict[str, Array]) -> Any:
        return self._policy.split(received, without_seed_axis=True)

    def policy_leaves(self, received: dict[str, Array]) -> list[Array]:
        return jax.tree.leaves(self._policy.split(received))


@final
class Layout:
    """Where the leaves of a tree with a seed axis lie in one vector per dtype."""

    def __init__(self, tree: Tree):
        leaves, self._structure = jax.tree.flatten(tree)
        self._shapes = [leaf.shape for leaf in leaves]
        self._dtypes = [str(leaf.dtype) for leaf in leaves]

    def join(self, tree: Tree) -> dict[str, Array]:
        rows: dict[str, list[Array]] = {}
        for leaf, dtype in zip(jax.tree.leaves(tree), self._dtypes, strict=True):
            rows.setdefault(dtype, []).append(leaf.reshape(leaf.shape[0], -1))
        return {dtype: jnp.concatenate(parts, axis=1) for dtype, parts in rows.items()}

    def split(self, vectors: dict[str, Array], without_seed_axis: bool = False) -> Tree:
        leaves, used = [], dict.fromkeys(vectors, 0)
        for shape, dtype in zip(self._shapes, self._dtypes, strict=True):
            start, size = used[dtype], math.prod(shape[1:])
            wanted = shape[1:] if without_seed_axis else shape
            leaves.append(vectors[dtype][..., start : start + size].reshape(wanted))
            used[dtype] += size
        return jax.tree.unflatten(self._structure, leaves)


def form_of(algorithm: Algorithm, learner: LearnerState, accelerated: bool) -> Form:
    """The form that suits where the learner is; equal learners share one."""
    return _make_form(algorithm, Shapes(learner), accelerated, _can_pin(learner.state.key.sharding))


@shared
def _make_form(algorithm: Algorithm, learner: Shapes, accelerated: bool, can_pin: bool) -> Form:
    if accelerated:
        return Vectors(algorithm, learner.tree, can_pin)
    return Leaves(algorithm, learner.tree)


def _can_pin(sharding: Sharding) -> bool:
    """Whether programs there can write to the host's memory directly."""
    device, *others = sharding.device_set
    if others:
        return False
    kinds = {memory.kind for memory in device.addressable_memories()}
    return device.platform != "cpu" and "pinned_host" in kinds


@shared
def form_programs(form: Form) -> tuple[Any, Any, Any]:
    return jax.jit(form.pack), jax.jit(form.unpack), jax.jit(form.send_policy)
