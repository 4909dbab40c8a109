"""The shared vocabulary: what flows down the river, and what describes its shape.

Experience flows environment → experience → update → policy → environment, and every room on
the way speaks these words. A `Spec` says what an agent sees and does; a `Transition` is what
happened; a `Batch` is what a loss may know about it.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int32, Shaped, UInt32

from understudy.errors import CheckpointError as CheckpointError
from understudy.errors import ConfigError as ConfigError
from understudy.errors import EnvironmentError as EnvironmentError
from understudy.errors import UnderstudyError as UnderstudyError

# Keys are raw `uint32[2]` arrays: every leaf of a State is then a plain array that can be
# saved, compared and hashed like any other.
Key = UInt32[Array, "*members 2"]
Scalar = Float[Array, ""]
Metrics = dict[str, Array]


@dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype of one observation."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Continuous:
    """A Box of actions. Inside the library they live in [-1, 1]^size; `low` and `high` are the
    real bounds, flattened, to which the border maps them."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.low)

    @property
    def stored(self) -> ArraySpec:
        """One action as experience keeps it."""
        return ArraySpec((self.size,))

    @property
    def bounded(self) -> bool:
        return all(math.isfinite(bound) for bound in self.low + self.high)


@dataclass(frozen=True)
class Discrete:
    """A choice of one in `n`, counted from 0 (the border adds the space's own start)."""

    n: int
    start: int = 0

    @property
    def size(self) -> int:
        """How wide an action is to a network: one number per choice."""
        return self.n

    @property
    def stored(self) -> ArraySpec:
        return ArraySpec((), "int32")


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once, each one in its own number of them, counted from 0."""

    choices: tuple[int, ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(self.choices)

    @property
    def stored(self) -> ArraySpec:
        return ArraySpec((len(self.choices),), "int32")


Action = Continuous | Discrete | MultiDiscrete


@dataclass(frozen=True)
class Spec:
    """What an agent sees and what it does."""

    observation: ArraySpec
    action: Action

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "Spec":
        """Back from `dataclasses.asdict` and JSON, where tuples have become lists."""

        def tuples(fields: dict[str, Any]) -> dict[str, Any]:
            return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}

        kinds = {"n": Discrete, "choices": MultiDiscrete, "low": Continuous}
        action = next(kind for mark, kind in kinds.items() if mark in stored["action"])
        return cls(ArraySpec(**tuples(stored["observation"])), action(**tuples(stored["action"])))


class Transition(NamedTuple):
    """What happened in one step: raw facts, no interpretation. Arrays share leading axes."""

    observation: Shaped[Array, "*batch observation"]
    action: Shaped[Array, "*batch action"]
    reward: Float[Array, "*batch"]  # as the environment gave it
    terminated: Shaped[Array, "*batch"]  # the task ended here: nothing to bootstrap from
    last: Shaped[Array, "*batch"]  # the episode's last step, for either reason
    next_observation: Shaped[Array, "*batch observation"]  # the true one, also at the end


class Batch(NamedTuple):
    """What a loss may know. Termination has become `discount`; there are no other flags."""

    observation: Shaped[Array, "batch observation"]
    action: Shaped[Array, "batch action"]
    reward: Float[Array, " batch"]  # n-step sum, scaled
    discount: Float[Array, " batch"]  # gamma^m * (1 - terminated)
    next_observation: Shaped[Array, "batch observation"]
    weight: Float[Array, " batch"]  # importance weight; ones for uniform replay
    row: Int32[Array, " batch"]  # place in the whole batch: a shard draws its rows' own noise


class Trajectory(NamedTuple):
    """Consecutive steps of N environments, [time, envs, ...]: what traces need to know."""

    observation: Shaped[Array, "time envs observation"]
    action: Shaped[Array, "time envs *action"]
    reward: Float[Array, "time envs"]  # scaled
    discount: Float[Array, "time envs"]  # gamma * (1 - terminated)
    last: Bool[Array, "time envs"]  # traces are cut after these
    next_observation: Shaped[Array, "time envs observation"]
    valid: Bool[Array, "time envs"]  # False where a row is no transition (it only reset)


Tree = Any  # a pytree of arrays
