"""Steps that come from afar: some of one collector's environments at a time, when they come.

Experience has a lane for every environment of every collector. A fragment holds several steps of a
few neighbouring lanes; the others stay as they are.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms.base import Algorithm
from understudy.training.feeding import Experience, add
from understudy.training.updates import Learner, observe
from understudy.types import Transition, Tree


class Fragment(NamedTuple):
    """Packed steps; with a member axis in front until a program peels it off."""

    blocks: Any  # [time, envs, bytes]
    lane: Any  # []: of the first of these environments


def add_all(
    experience: Experience,
    steps: Transition,
    valid: Bool[Array, "time envs"],
    memory: Float[Array, "time envs memory"] | None,
    lane: Int32[Array, ""],
) -> Experience:
    """Append all steps, [time, envs, ...], to the lanes from `lane` on."""
    lanes = len(experience.cursor)

    def one(experience: Experience, now: Tree) -> tuple[Experience, None]:
        step, valid, memory = jax.tree.map(lambda rows: _widen(rows, lanes, lane), now)
        return add(experience, step, valid, memory), None

    return jax.lax.scan(one, experience, (steps, valid, memory))[0]


def observe_all(
    algorithm: Algorithm,
    learner: Learner,
    steps: Transition,
    valid: Bool[Array, "time envs"],
    lane: Int32[Array, ""],
) -> Learner:
    """Take the steps into the running statistics, where there are any."""
    if learner.state.running == (None, None):
        return learner
    everyone, envs = learner.open_return, valid.shape[1]
    part = learner._replace(open_return=jax.lax.dynamic_slice_in_dim(everyone, lane, envs))

    def one(part: Learner, now: Tree) -> tuple[Learner, None]:
        return observe(algorithm, part, *now), None

    part = jax.lax.scan(one, part, (steps, valid))[0]
    opened = jax.lax.dynamic_update_slice_in_dim(everyone, part.open_return, lane, 0)
    return part._replace(open_return=opened)


def widen_on_host(report: dict[str, np.ndarray], lanes: int, fragment: Fragment) -> Any:
    """Of a fragment [members, time, envs, ...] that was read: a report [members · lanes, ...] of
    every step, one after the other."""
    members, time, envs = fragment.blocks.shape[:3]
    lane = int(fragment.lane[0])
    for step in range(time):
        wide = {}
        for name, rows in report.items():
            own = rows.reshape(members, time, envs, *rows.shape[1:])[:, step]
            wide[name] = np.zeros((members, lanes, *rows.shape[1:]), rows.dtype)
            wide[name][:, lane : lane + envs] = own
            wide[name] = wide[name].reshape(members * lanes, *rows.shape[1:])
        yield wide


def _widen(rows: Array, lanes: int, lane: Int32[Array, ""]) -> Array:
    """[envs, ...] as [lanes, ...]: nothing (and nothing valid) in the lanes of others."""
    if len(rows) == lanes:
        return rows
    wide = jnp.zeros((lanes, *rows.shape[1:]), rows.dtype)
    return jax.lax.dynamic_update_slice_in_dim(wide, rows, lane, 0)
