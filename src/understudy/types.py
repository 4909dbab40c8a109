"""The types that all packages share.

A `Spec` describes observations and actions. A `Step` holds what happened, a `Chunk` holds steps on
their way from a collector to a buffer, and a `Batch` holds what losses need of them.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Int32, Shaped, UInt32

from understudy.errors import CheckpointError as CheckpointError
from understudy.errors import ClusterError as ClusterError
from understudy.errors import ConfigError as ConfigError
from understudy.errors import DivergedError as DivergedError
from understudy.errors import EnvironmentError as EnvironmentError
from understudy.errors import UnderstudyError as UnderstudyError

# Keys are raw `uint32[2]` arrays: every leaf of a State is then a plain array that can be
# saved, compared and hashed like any other.
Key = UInt32[Array, "*members 2"]
Scalar = Float[Array, ""]
Metrics = dict[str, Array]


@dataclass(frozen=True)
class Part:
    """One entry of a Dict observation, or the only entry of a Discrete observation."""

    name: str  # nested names are joined by "/"; "" where there is only one
    shape: tuple[int, ...]
    dtype: str
    choices: int = 0  # of a Discrete entry, written as one 1 among so many 0s
    start: int = 0  # what such an entry counts from

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype of one array; of an observation also its parts.

    Inside the library an observation is always one array. A Dict of numbers becomes one vector of
    floats, the concatenated entries; a Dict with images becomes the bytes of its entries.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    parts: tuple[Part, ...] = ()  # in their order in the array
    frames: int = 1  # of a stack: the first axis, the newest frame last

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """Whether it is an image of bytes, or planes of booleans."""
        return self.dtype in ("uint8", "bool") and len(self.shape) > 1

    @property
    def in_bytes(self) -> bool:
        """Whether it holds the bytes of a Dict with images."""
        return self.dtype == "uint8" and bool(self.parts)


@dataclass(frozen=True)
class Continuous:
    """A Box of actions. Inside the library they are in [-1, 1]^size; `low` and `high` are the real
    bounds, flattened, to which `envs` maps them."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.low)

    @property
    def stored(self) -> ArraySpec:
        """The array of one action in a buffer."""
        return ArraySpec((self.size,))

    @property
    def bounded(self) -> bool:
        return all(math.isfinite(bound) for bound in self.low + self.high)


@dataclass(frozen=True)
class Discrete:
    """A choice of one in `n`, counted from 0 (`envs` adds the space's own start)."""

    n: int
    start: int = 0

    @property
    def size(self) -> int:
        """Numbers of an action to a network: one for each choice."""
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


@dataclass(frozen=True)
class Joint(Discrete):
    """Several choices made as one: number n stands for a combination, counted like the digits of
    a number, the last choice fastest."""

    of: MultiDiscrete = MultiDiscrete((1,), (0,), (1,))

    @classmethod
    def over(cls, several: MultiDiscrete) -> "Joint":
        return cls(math.prod(several.choices), of=several)


Action = Continuous | Discrete | MultiDiscrete


@dataclass(frozen=True)
class Spec:
    """The observations and actions of an agent."""

    observation: ArraySpec
    action: Action

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "Spec":
        """Make a spec of `dataclasses.asdict` and JSON, where tuples have become lists."""

        def tuples(fields: dict[str, Any]) -> dict[str, Any]:
            return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}

        seen, done = tuples(stored["observation"]), tuples(stored["action"])
        seen["parts"] = tuple(Part(**tuples(part)) for part in seen.get("parts", ()))
        if "of" in done:
            several = MultiDiscrete(**tuples(done["of"]))
            return cls(ArraySpec(**seen), Joint(done["n"], done["start"], several))
        kinds = {"n": Discrete, "choices": MultiDiscrete, "low": Continuous}
        action = next(kind for mark, kind in kinds.items() if mark in done)
        return cls(ArraySpec(**seen), action(**done))


@dataclass(frozen=True)
class Sequences:
    """How replay is divided into sequences for recurrent networks."""

    burn_in: int  # steps that only update the recurrent state
    length: int  # steps that are learned from
    stride: int  # steps from the start of one sequence to that of the next
    memory: int  # numbers of a recurrent state


class History(eqx.Module):
    """Observations up to some moments, for recurrent networks: B sequences of T steps, with the
    recurrent state before each. A network returns B × N rows, one for each moment."""

    observation: Shaped[Array, "batch time *observation"]
    first: Bool[Array, "batch time"]  # an episode begins here: the recurrent state is reset
    memory: Float[Array, "batch memory"]  # before the first step
    at: Int32[Array, "batch moments"]  # the times of the moments
    ahead: Shaped[Array, "batch moments *observation"] | None = None
    """Where given, the rows are for these observations, one step after each moment."""
    burn_in: int = eqx.field(static=True, default=0)  # steps that gradients do not go through


Observation = Any  # an array [rows, ...], or a History


class Step(NamedTuple):
    """One step as it happened. Arrays share leading axes."""

    observation: Shaped[Array, "*batch observation"]
    action: Shaped[Array, "*batch action"]
    reward: Float[Array, "*batch"]  # as the environment gave it
    terminated: Shaped[Array, "*batch"]  # the task ended here: nothing to bootstrap from
    last: Shaped[Array, "*batch"]  # the episode's last step, for either reason
    next_observation: Shaped[Array, "*batch observation"]  # the true one, also at the end


class Chunk(NamedTuple):
    """Steps on their way from a collector to a buffer, exactly as they happened: arrays [time,
    lanes, ...], with an axis of seeds in front outside the programs for one seed.

    A row that is not `valid` is no step (the environment only reset). If such a row is `last`, it
    cuts the lane's open episode: the step before it becomes the episode's last."""

    steps: Step
    valid: Bool[Array, "time lanes"]
    recurrent_state: Float[Array, "time lanes width"] | None = None
    """Before each step; zeros where an episode begins."""
    extras: dict[str, Array] | None = None  # of acting, such as the log-probability
    first_lane: Int32[Array, ""] | None = None
    """The lane of the first column, where a chunk holds a part of the lanes."""

    @classmethod
    def of_one_step(
        cls, step: Step, valid: Array, recurrent_state: Array | None = None, **extras: Array
    ) -> "Chunk":
        """One step of all lanes, [lanes, ...]."""
        rows = (step, valid, recurrent_state, extras or None)
        return cls(*jax.tree.map(lambda x: x[None], rows))


class Batch(NamedTuple):
    """The rows that a loss learns from. Termination is in `discount`; there are no flags."""

    observation: Observation
    action: Shaped[Array, "batch action"]
    reward: Float[Array, " batch"]  # n-step sum, scaled
    discount: Float[Array, " batch"]  # gamma^m * (1 - terminated)
    next_observation: Observation
    weight: Float[Array, " batch"]  # importance weight; ones for uniform replay
    row: Int32[Array, " batch"]  # place in the whole batch, by which noise is drawn


class Trajectory(NamedTuple):
    """Consecutive steps of N environments, [time, envs, ...], for traces."""

    observation: Shaped[Array, "time envs *observation"]
    action: Shaped[Array, "time envs *action"]
    reward: Float[Array, "time envs"]  # scaled
    discount: Float[Array, "time envs"]  # gamma * (1 - terminated)
    last: Bool[Array, "time envs"]  # traces are cut after these
    next_observation: Shaped[Array, "time envs *observation"]
    valid: Bool[Array, "time envs"]  # False where a row is no transition (it only reset)
    memory: Float[Array, "envs memory"] | None = None  # before the first step
    extras: dict[str, Float[Array, "time envs"]] | None = None  # of acting


Tree = Any  # a pytree of arrays
