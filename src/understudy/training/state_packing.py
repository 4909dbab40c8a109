"""The forms in which a learner's state is stored between programs and a policy is sent.

A first-time reader can skip this file: `Transport` says why there are two forms. Both have the
same methods, which `Leaves` describes.
"""

import math
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array

from understudy.algorithms.base import Algorithm
from understudy.training.initialization import learner_shapes
from understudy.training.program_cache import shared
from understudy.training.setup import TrainingSetup
from understudy.training.update import LearnerState
from understudy.types import Tree

LARGEST_JOINED = 4_096  # numbers of a leaf that is joined with others: copies cost time


class Parts(NamedTuple):
    """A learner between programs on the CPU."""

    separate: list[Array]  # leaves that acting reads, and large ones
    joined: dict[str, Array]  # [K, numbers] per dtype: all small others


@final
class Leaves:
    """Leaves without their modules, because flattening and unflattening modules at every call can
    take Python longer than a small network's update. A call also takes more than a microsecond for
    each of its buffers, so small leaves are joined."""

    def __init__(self, algorithm: Algorithm, learner: LearnerState):
        leaves, self._structure = jax.tree.flatten(learner)
        numbers = jax.tree.unflatten(self._structure, range(len(leaves)))
        read, self._policy = jax.tree.flatten(algorithm.policy(numbers.state))
        sizes = [math.prod(leaf.shape[1:]) for leaf in leaves]
        small = [n for n, size in enumerate(sizes) if size <= LARGEST_JOINED]
        self._joined = [n for n in small if n not in read]
        self._separate = [n for n in range(len(leaves)) if n not in self._joined]
        self._places = [self._separate.index(n) for n in read]
        self._layout = Layout([leaves[n] for n in self._joined])

    def pack(self, learner: LearnerState) -> Parts:
        leaves = jax.tree.leaves(learner)
        joined = self._layout.join([leaves[n] for n in self._joined])
        return Parts([leaves[n] for n in self._separate], joined)

    def unpack(self, packed: Parts) -> LearnerState:
        leaves = dict(zip(self._separate, packed.separate, strict=True))
        leaves |= zip(self._joined, self._layout.split(packed.joined), strict=True)
        return jax.tree.unflatten(self._structure, [leaves[n] for n in sorted(leaves)])

    def send_policy(self, packed: Parts) -> None:
        """The policy as a program's output, for acting elsewhere; None where acting reads the
        learner itself. Called inside the learn program."""
        return None

    def receive_policy(self, sent: None, packed: Parts) -> list[Array]:
        """What acting takes, out of what was sent or out of the learner."""
        return [packed.separate[place] for place in self._places]

    def lasting_policy(self, received: list[Array], device: Any) -> list[Array]:
        """The same in arrays that no later program donates, for several acts on the device."""
        return [jax.device_put(leaf, leaf.sharding, may_alias=False) for leaf in received]

    def read_policy(self, received: list[Array]) -> Any:
        """One seed's policy out of that. Called inside the act program."""
        return jax.tree.unflatten(self._policy, received)

    def policy_leaves(self, received: list[Array]) -> list[Array]:
        """The leaves [K, ...] of all seeds' policies in order, to be sent to other processes."""
        return received


@final
class Vectors:
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


Form = Leaves | Vectors


@shared
def make_form(setup: TrainingSetup, accelerated: bool, can_pin: bool) -> Form:
    """The form that suits where the learner is; equal learners share one."""
    algorithm, learner = setup.algorithm, learner_shapes(setup)
    return Vectors(algorithm, learner, can_pin) if accelerated else Leaves(algorithm, learner)


def can_pin(sharding: Sharding) -> bool:
    """Whether programs there can write to the host's memory directly."""
    device, *others = sharding.device_set
    if others or device.platform == "cpu":
        return False
    return "pinned_host" in {memory.kind for memory in device.addressable_memories()}


@shared
def form_programs(form: Form) -> tuple[Any, Any, Any]:
    return jax.jit(form.pack), jax.jit(form.unpack), jax.jit(form.send_policy)
