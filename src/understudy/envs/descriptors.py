"""Descriptors of behavior for quality-diversity: some numbers of every state, combined over an
episode; and those of Gymnasium's MuJoCo walkers. Free of JAX: environment workers import it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np

from understudy.errors import ConfigError

OVER = ("mean", "last")
Numbers = Callable[[Any, Any], Any]

_ALIASES = {"feet": "uni", "position": "omni"}  # in the literature

_FLOOR = "floor"
# Kind of environment → the geoms of its feet, and their names in plots.
FEET = {
    "HalfCheetah": {"bfoot": "back foot", "ffoot": "front foot"},
    "Walker2d": {"foot_geom": "right foot", "foot_left_geom": "left foot"},
    "Hopper": {"foot_geom": "foot"},
    "Ant": {
        "left_ankle_geom": "front left foot",
        "right_ankle_geom": "front right foot",
        "third_ankle_geom": "back left foot",
        "fourth_ankle_geom": "back right foot",
    },
}
_VERSIONS = ("v4", "v5")
_REACH = 30.0  # metres: published for the ant, with Brax and episodes of 250 steps (12.5 s)

# Environment → the geoms of its feet → the table of `_FeetOnFloor`. Not stored in that class, which
# is sent to worker processes.
contact_tables: WeakKeyDictionary[Any, dict[tuple[str, ...], np.ndarray]] = WeakKeyDictionary()


@final
@dataclass(frozen=True)
class Descriptor:
    """Numbers that distinguish behaviors, each between its `low` and its `high`."""

    of: Numbers
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
    feet: Iterable[str], touching: Numbers, axes: tuple[str, ...], position: Numbers, reach: float
) -> dict[str, Descriptor]:
    """Return the descriptors of a walking robot: how much of the time each foot touches the floor,
    and where its torso ends up, within ±`reach` metres along each axis."""
    names = tuple(feet)
    floor, ceiling = (0.0,) * len(names), (1.0,) * len(names)
    near, far = (-reach,) * len(axes), (reach,) * len(axes)
    return {
        "feet": Descriptor(touching, floor, ceiling, "mean", names),
        "position": Descriptor(position, near, far, "last", axes),
    }


def descriptors_of(name: str | None) -> dict[str, Descriptor]:
    """Return the descriptors of a Gymnasium id, the default first; none for other environments."""
    kind, _, version = (name or "").partition("-")
    if kind not in FEET or version not in _VERSIONS:
        return {}
    feet, axes = FEET[kind], ("x", "y") if kind == "Ant" else ("x",)
    touching, position = _FeetOnFloor(tuple(feet)), _TorsoPosition(len(axes))
    return walker_descriptors(feet.values(), touching, axes, position, _REACH)


@final
@dataclass(frozen=True)
class _FeetOnFloor:
    """1 for each foot that touches the floor, otherwise 0. This reads only MuJoCo's list of
    contacts: a geom within its margin is in it, and that is where such a geom comes to rest."""

    feet: tuple[str, ...]

    def __call__(self, env: Any, observation: Any) -> np.ndarray:
        env = env.unwrapped
        tables = contact_tables.setdefault(env, {})
        if self.feet not in tables:
            tables[self.feet] = self._table(env.model)
        pairs = env.data.contact.geom  # [contacts, 2]
        return np.logical_or.reduce(tables[self.feet][pairs[:, 0], pairs[:, 1]])

    def _table(self, model: Any) -> np.ndarray:
        """[geom, geom, foot]: whether these two are this foot and the floor."""
        table = np.zeros((model.ngeom, model.ngeom, len(self.feet)), np.bool_)
        floor = model.geom(_FLOOR).id
        for place, name in enumerate(self.feet):
            foot = model.geom(name).id
            table[foot, floor, place] = table[floor, foot, place] = True
        return table


@final
@dataclass(frozen=True)
class _TorsoPosition:
    """The position of the torso in metres, from where the environment begins."""

    axes: int

    def __call__(self, env: Any, observation: Any) -> np.ndarray:
        return env.unwrapped.data.qpos[: self.axes].copy()
