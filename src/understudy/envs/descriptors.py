"""What a behavior looks like to quality-diversity: some numbers of every state, put together over
an episode. Free of JAX: environment workers import it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from understudy.errors import ConfigError

OVER = ("mean", "last")
_ALSO_KNOWN_AS = {"feet": "uni", "position": "omni"}  # in the literature


@final
@dataclass(frozen=True)
class Descriptor:
    """Behaviors are told apart by these numbers, each between its `low` and its `high`."""

    of: Callable[[Any, Any], Any]
    """Gives the numbers after each step: of (environment, observation), for a native environment
    of (state, observation)."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    over: str = "mean"
    """What an episode's descriptor is: the mean of its steps', or the last one's."""
    names: tuple[str, ...] = ()
    """What the numbers are called in pictures."""

    def __post_init__(self) -> None:
        if not self.low or len(self.low) != len(self.high):
            raise ConfigError(
                f"a descriptor needs as many low as high bounds, got {self.low} and {self.high}"
            )
        if not all(low < high for low, high in zip(self.low, self.high, strict=True)):
            raise ConfigError(f"each low must be below its high, got {self.low} and {self.high}")
        if self.over not in OVER:
            raise ConfigError(f'over must be one of {", ".join(OVER)}, got "{self.over}"')
        if self.names and len(self.names) != self.size:
            raise ConfigError(f"{self.size} numbers need {self.size} names, got {self.names}")

    @property
    def shareable(self) -> bool:
        """Whether agents may share programs that compute this: `of` is not the user's own."""
        return getattr(self.of, "__module__", "").startswith("understudy.")

    @property
    def size(self) -> int:
        return len(self.low)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """A name for each number."""
        return self.names or tuple(f"descriptor {place + 1}" for place in range(self.size))


def find_descriptor(
    available: Mapping[str, Descriptor], wanted: str | Descriptor | None, env_name: str | None
) -> Descriptor:
    """The `wanted` one of an environment's own, by name; its usual one for None. A `Descriptor`
    is taken as it is."""
    if isinstance(wanted, Descriptor):
        return wanted
    where = f'"{env_name}"' if env_name else "this environment"
    if not available:
        raise ConfigError(
            f"{where} has no descriptors of its own: give a Descriptor(of, low, high), where "
            "of(env, observation) (native environments: of(state, observation)) gives the numbers "
            "that tell behaviors apart"
        )
    if wanted is None:
        return next(iter(available.values()))
    for name, descriptor in available.items():
        if wanted in (name, _ALSO_KNOWN_AS.get(name)):
            return descriptor
    known = (
        f"{name} ({also})" if (also := _ALSO_KNOWN_AS.get(name)) else name for name in available
    )
    raise ConfigError(f'{where} has no descriptor "{wanted}"; there are: {", ".join(known)}')
