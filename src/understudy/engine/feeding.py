"""Which container feeds which appetite, and how a batch is drawn from it."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from understudy.algorithms.base import Algorithm, Appetite, Replay
from understudy.experience import Ring, Rollout, ring, rollout
from understudy.experience.ring import Priorities
from understudy.types import Key, Spec, Transition

Experience = Ring | Rollout


def size_in_bytes(appetite: Appetite, spec: Spec, lanes: int) -> int:
    """What `create` will allocate."""
    if isinstance(appetite, Replay):
        prioritised = appetite.priority_exponent is not None
        return ring.size_in_bytes(spec, appetite.buffer_size, lanes, prioritised)
    return rollout.size_in_bytes(spec, appetite.horizon, lanes)


def create(appetite: Appetite, spec: Spec, lanes: int) -> Experience:
    """An empty container for the experience of `lanes` environments."""
    if isinstance(appetite, Replay):
        prioritised = appetite.priority_exponent is not None
        return ring.create(spec, appetite.buffer_size, lanes, prioritised)
    return rollout.create(spec, appetite.horizon, lanes)


def add(experience: Experience, step: Transition, valid: Bool[Array, " lanes"]) -> Experience:
    """Append one step of every lane; rows that are not `valid` are not learned from."""
    container = ring if isinstance(experience, Ring) else rollout
    return container.add(experience, step, valid)  # type: ignore[arg-type]


def fill(experience: Experience, steps: Transition, valid: Bool[Array, "time lanes"]) -> Rollout:
    """A whole rollout at once, [time, lanes, ...], in place of all that was there."""
    assert isinstance(experience, Rollout)
    return Rollout(steps, valid, jnp.zeros_like(experience.cursor))


def with_priorities(experience: Experience, priorities: Priorities | None) -> Experience:
    """The same steps, drawn by other priorities."""
    if priorities is None or not isinstance(experience, Ring):
        return experience
    return experience._replace(priorities=priorities)


def draw(
    algorithm: Algorithm, state: Any, experience: Experience, key: Key
) -> tuple[Any, Int32[Array, " batch"] | None]:
    """A batch, prepared; and where its rows lie in the ring, if it came from one."""
    gamma, reward_scale = state.hyper["gamma"], state.hyper["reward_scale"]
    if isinstance(experience, Rollout):
        steps = rollout.trajectory(experience, gamma=gamma, reward_scale=reward_scale)
        return algorithm.prepare(state, steps), None
    appetite = algorithm.appetite
    assert isinstance(appetite, Replay)
    batch, place = ring.sample(
        experience,
        key,
        appetite.batch_size,
        gamma=gamma,
        reward_scale=reward_scale,
        n_step=appetite.n_step,
        importance_exponent=state.hyper["importance_exponent"],
    )
    return algorithm.prepare(state, batch), place
