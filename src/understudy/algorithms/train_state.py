"""The state of training: everything that an algorithm changes, under the same names for all.

Weights, targets, checkpoints, what gradient workers are sent and what a new seed begins with are
generic code, because they find their parts here and parse no names.
"""

from typing import Any, NamedTuple

from jaxtyping import Array, Int32

from understudy.algorithms.normalization import Normalizer
from understudy.types import Key, Scalar, Tree


class TrainState(NamedTuple):
    params: Any  # what optimizers move, by name: networks, and numbers such as a temperature
    targets: Any  # slowly moving copies, under the names of what they follow
    opt_state: dict[str, Tree]  # of every optimizer, under the names of what they move
    normalizer: Normalizer  # statistics of observations and returns
    hyper: dict[str, Scalar]  # hyper-parameters that can move
    updates: Int32[Array, ""]
    key: Key


class NoTargets(NamedTuple):
    """Of an algorithm without target networks."""
