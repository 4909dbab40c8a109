"""What a behaviour looks like to quality-diversity: some numbers of every state, put together over
an episode."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from understudy.errors import ConfigError

OVER = ("mean", "last")


@final
@dataclass(frozen=True)
class Descriptor:
    """Behaviours are told apart by these numbers, each between its `low` and its `high`."""

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
    def size(self) -> int:
        return len(self.low)

    @property
    def called(self) -> tuple[str, ...]:
        """A name for each number."""
        return self.names or tuple(f"descriptor {place + 1}" for place in range(self.size))
