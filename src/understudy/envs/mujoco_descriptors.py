"""Descriptors of behavior for Gymnasium's MuJoCo walkers.

Free of JAX: environment workers import it.
"""

from dataclasses import dataclass
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np

from understudy.envs.descriptors import Descriptor, walker_descriptors

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


def descriptors_of(name: str | None) -> dict[str, Descriptor]:
    """Return the descriptors of a Gymnasium id, the default first; none for other environments."""
    kind, _, version = (name or "").partition("-")
    if kind not in FEET or version not in _VERSIONS:
        return {}
    feet, axes = FEET[kind], ("x", "y") if kind == "Ant" else ("x",)
    touching, position = _FeetOnFloor(tuple(feet)), _TorsoPosition(len(axes))
    return walker_descriptors(tuple(feet.values()), touching, axes, position, _REACH)


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
