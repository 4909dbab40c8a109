"""The state of training: everything that an algorithm changes, under the same names for all.

Weights, targets, checkpoints, messages to gradient workers and the initialization of a new seed are
generic code, because they find their parts here and parse no names.
"""

from typing import Any, NamedTuple

from jaxtyping import Array, Int32

from understudy.algorithms.normalization import Normalizer
from understudy.types import Key, Scalar, Tree


class ActorCritic(NamedTuple):
    """The params of an algorithm that learns no numbers besides."""

    actor: Any
    critic: Any  # [critics, ...], or one V


class TrainState(NamedTuple):
    params: Any  # a named tuple of what optimizers move: networks, and numbers
    targets: Any  # slowly moving copies in the form of the params; None for params without one
    opt_state: dict[str, Tree]  # of every optimizer, under the names of what they move
    normalizer: Normalizer  # statistics of observations and returns
    hyper: dict[str, Scalar]  # hyper-parameters that can move
    updates: Int32[Array, ""]
    key: Key
