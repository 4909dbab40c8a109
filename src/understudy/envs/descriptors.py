"""Descriptors of behavior for quality-diversity: some numbers of every state, combined over an
episode. Free of JAX: environment workers import it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from understudy.errors import ConfigError

OVER = ("mean", "last")
_ALIASES = {"feet": "uni", "position": "omni"}  # in the literature


@final
@dataclass(frozen=True)
class Descriptor:
    """Numbers that distinguish behaviors, each between its `low` and its `high`."""

    of: Callable[[Any, Any], Any]
    """Returns the numbers after each step: of(environment, observation), for a native environment
    of(state, observation)."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    over: str = "mean"
    """How an episode's descriptor is formed: "mean" of its steps, or of its "last" step."""
    names: tuple[str, ...] = ()
    """Names of the numbers in plots."""

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
    """Return the environment's own descriptor of that name, its default for None. A `Descriptor`
    is returned as it is."""
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
        if wanted in (name, _ALIASES.get(name)):
            return descriptor
    known = (f"{name} ({also})" if (also := _ALIASES.get(name)) else name for name in available)
    raise ConfigError(f'{where} has no descriptor "{wanted}"; there are: {", ".join(known)}')


def walker_descriptors(
    feet: tuple[str, ...],
    touching: Callable[[Any, Any], Any],
    axes: tuple[str, ...],
    position: Callable[[Any, Any], Any],
    reach: float,
) -> dict[str, Descriptor]:
    """Return the descriptors of a walking robot: how much of the time each foot touches the floor,
    and where its torso ends up, within ±`reach` metres along each axis."""
    floor, ceiling = (0.0,) * len(feet), (1.0,) * len(feet)
    near, far = (-reach,) * len(axes), (reach,) * len(axes)
    return {
        "feet": Descriptor(touching, floor, ceiling, "mean", feet),
        "position": Descriptor(position, near, far, "last", axes),
    }
