"""Where learning happens, as the host loop sees it: a step goes in, a policy comes out.

`OnHost`: learner and environments share the CPU; programs run asynchronously by themselves.
`OnAccelerator`: a call of many small buffers costs more there than the update it starts (about
4 µs a buffer, 59 buffers for SAC, on an H200), and each transfer as much again. So the learner
crosses program boundaries packed into one vector per dtype, a thread makes the calls while the
environments step, and a small policy comes back to the host, where acting is sooner done than
two transfers are.
"""

import abc
import math
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from understudy.algorithms.base import Algorithm
from understudy.engine.members import over_members
from understudy.engine.packing import Parcel
from understudy.engine.updates import Learner, updates
from understudy.experience import Ring, add
from understudy.types import Transition, Tree

LARGEST_POLICY_SENT_TO_HOST = 2**22  # bytes, of all members together


class LearningSide(abc.ABC):
    """Holds learner and ring; adds steps and updates, one call ahead of the environments."""

    act_device: Any  # where the act program is to run
    frees_policy: bool  # whether `learn` may be called while a policy it gave is still in use

    @property
    @abc.abstractmethod
    def learner(self) -> Learner: ...

    @learner.setter
    @abc.abstractmethod
    def learner(self, learner: Learner) -> None: ...

    @property
    @abc.abstractmethod
    def ring(self) -> Ring: ...

    @ring.setter
    @abc.abstractmethod
    def ring(self, ring: Ring) -> None: ...

    @abc.abstractmethod
    def policy(self) -> Any:
        """What the act program takes: the policy after every update asked for so far."""

    @abc.abstractmethod
    def read_policy(self, sent: Any) -> Any:
        """One member's policy from what `policy` gave. Called inside the act program."""

    @abc.abstractmethod
    def learn(self, happened: np.ndarray, count: int) -> None:
        """Add a packed step [K, N, bytes] and do `count` updates; returns at once."""

    @abc.abstractmethod
    def restart_counting(self, updates_done: int) -> None:
        """Set the index of the next update."""

    @abc.abstractmethod
    def close(self) -> None: ...


def add_and_update(
    algorithm: Algorithm, parcel: Parcel, members: int, learner, ring, happened, index, count: int
) -> tuple[Learner, Ring]:
    """The learning half of an iteration, for all members; traced into the sides' programs."""

    def one(learner: Learner, ring: Ring, happened: Array, index: Array):
        facts = parcel.unpack(happened)
        valid = facts.pop("valid")
        ring = add(ring, Transition(**facts), valid)
        if count:
            learner = updates(algorithm, learner, ring, index, count)
        return learner, ring

    return over_members(one, members, shared=(3,))(learner, ring, happened, index)


@final
class OnHost(LearningSide):
    """Learner and acting on one device. Between calls only the leaves are held: taking modules
    apart and putting them together costs Python more time than a small update takes."""

    frees_policy = False  # `learn` takes the buffers that the policy is read from
    ring: Any = None

    def __init__(self, algorithm: Algorithm, parcel: Parcel, learner: Learner, ring: Ring):
        self.learner, self.ring = learner, ring
        self._index = jnp.int32(0)
        self.act_device = self._leaves[0].devices().pop()
        places = jax.tree.unflatten(self._structure, range(len(self._leaves)))
        policy_places = algorithm.policy(places.state)
        self._policy_places, self._policy_structure = jax.tree.flatten(policy_places)
        structure, members = self._structure, len(learner.state.key)

        def learn(leaves: list[Array], ring: Ring, happened: Array, index: Array, count: int):
            learner, ring = add_and_update(
                algorithm, parcel, members, jax.tree.unflatten(structure, leaves), ring, happened,
                index, count,
            )  # fmt: skip
            return jax.tree.leaves(learner), ring, index + count

        self.program = jax.jit(learn, donate_argnums=(0, 1, 3), static_argnums=4)

    @property
    def learner(self) -> Learner:
        return jax.tree.unflatten(self._structure, self._leaves)

    @learner.setter
    def learner(self, learner: Learner) -> None:
        self._leaves, self._structure = jax.tree.flatten(learner)

    def policy(self) -> list[Array]:
        return [self._leaves[place] for place in self._policy_places]

    def read_policy(self, sent: list[Array]) -> Any:
        return jax.tree.unflatten(self._policy_structure, sent)

    def learn(self, happened: np.ndarray, count: int) -> None:
        self._leaves, self.ring, self._index = self.program(
            self._leaves, self.ring, happened, self._index, count
        )

    def restart_counting(self, updates_done: int) -> None:
        self._index = jnp.int32(updates_done)

    def close(self) -> None:
        """Nothing is held outside the device's memory."""


@final
class OnAccelerator(LearningSide):
    """Learner on an accelerator, driven by a thread of its own; acting on the host."""

    frees_policy = True  # the policy is a copy

    def __init__(self, algorithm: Algorithm, parcel: Parcel, learner: Learner, ring: Ring):
        self._packing = Packing(learner)
        self._policy_packing = Packing(algorithm.policy(learner.state))
        self.act_device = jax.devices("cpu")[0]
        self._device = learner.state.key.devices().pop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="understudy-learner")
        self._pending: Future | None = None
        self._pack = jax.jit(self._packing.pack)
        self._unpack = jax.jit(self._packing.unpack)
        self._pack_policy = jax.jit(
            lambda packed: self._policy_packing.pack(
                algorithm.policy(self._packing.unpack(packed).state)
            )
        )
        self._ring, self._index = ring, jnp.int32(0)
        self.learner = learner
        members = len(learner.state.key)

        def learn(packed: Tree, ring: Ring, happened: Array, index: Array, count: int):
            learner, ring = add_and_update(
                algorithm, parcel, members, self._packing.unpack(packed), ring, happened, index,
                count,
            )  # fmt: skip
            policy = self._policy_packing.pack(algorithm.policy(learner.state))
            return self._packing.pack(learner), ring, index + count, policy

        self.program = jax.jit(learn, donate_argnums=(0, 1, 3), static_argnums=4)

    def _wait(self) -> None:
        """Until the thread has nothing left to do: only then may its buffers be touched."""
        if self._pending is not None:
            self._policy = self._pending.result()
            self._pending = None

    @property
    def learner(self) -> Learner:
        self._wait()
        return self._unpack(self._packed)

    @learner.setter
    def learner(self, learner: Learner) -> None:
        self._wait()
        self._packed = self._pack(learner)
        self._policy = jax.device_get(self._pack_policy(self._packed))

    @property
    def ring(self) -> Ring:
        self._wait()
        return self._ring

    @ring.setter
    def ring(self, ring: Ring) -> None:
        self._wait()
        self._ring = ring

    def policy(self) -> dict[str, np.ndarray]:
        self._wait()
        return self._policy

    def read_policy(self, sent: dict[str, Array]) -> Any:
        return self._policy_packing.unpack_one(sent)

    def learn(self, happened: np.ndarray, count: int) -> None:
        self._wait()
        self._pending = self._thread.submit(self._call, happened, count)

    def _call(self, happened: np.ndarray, count: int) -> dict[str, np.ndarray]:
        with jax.default_device(self._device):
            self._packed, self._ring, self._index, policy = self.program(
                self._packed, self._ring, happened, self._index, count
            )
        return jax.tree.map(np.asarray, policy)

    def restart_counting(self, updates_done: int) -> None:
        self._wait()
        self._index = jnp.int32(updates_done)

    def close(self) -> None:
        self._thread.shutdown()


@final
class Packing:
    """A pytree with a member axis as one array [K, numbers] per dtype, and back."""

    def __init__(self, tree: Tree):
        leaves, self._structure = jax.tree.flatten(tree)
        self._shapes = [leaf.shape for leaf in leaves]
        self._dtypes = [str(leaf.dtype) for leaf in leaves]

    def pack(self, tree: Tree) -> dict[str, Array]:
        by_dtype: dict[str, list[Array]] = {}
        for leaf, dtype in zip(jax.tree.leaves(tree), self._dtypes, strict=True):
            by_dtype.setdefault(dtype, []).append(leaf.reshape(leaf.shape[0], -1))
        return {dtype: jnp.concatenate(rows, axis=1) for dtype, rows in by_dtype.items()}

    def unpack(self, packed: dict[str, Array]) -> Tree:
        return self._read(packed, self._shapes)

    def unpack_one(self, packed: dict[str, Array]) -> Tree:
        """The same for a single member, whose axis has been taken off."""
        return self._read(packed, [shape[1:] for shape in self._shapes])

    def _read(self, packed: dict[str, Array], shapes: list[tuple[int, ...]]) -> Tree:
        leaves, used = [], dict.fromkeys(packed, 0)
        for full, shape, dtype in zip(self._shapes, shapes, self._dtypes, strict=True):
            start, size = used[dtype], math.prod(full[1:])
            leaves.append(packed[dtype][..., start : start + size].reshape(shape))
            used[dtype] += size
        return jax.tree.unflatten(self._structure, leaves)


def learning_side(
    algorithm: Algorithm, parcel: Parcel, learner: Learner, ring: Ring
) -> LearningSide:
    """The side that suits the device on which the learner is."""
    policy = algorithm.policy(learner.state)
    small = sum(leaf.nbytes for leaf in jax.tree.leaves(policy)) <= LARGEST_POLICY_SENT_TO_HOST
    accelerated = learner.state.key.devices().pop().platform != "cpu"
    side = OnAccelerator if accelerated and small else OnHost
    return side(algorithm, parcel, learner, ring)
