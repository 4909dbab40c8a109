"""The rollout: what the present policy has just done, stored until it is learned from."""

from dataclasses import dataclass
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.buffers.base import Buffer, Hyper, init_storage
from understudy.types import Chunk, Key, Spec, Step, Trajectory


class RolloutState(NamedTuple):
    storage: Step  # [horizon, lanes, ...]
    valid: Bool[Array, "horizon lanes"]
    cursor: Int32[Array, ""]  # where the next step goes
    recurrent_state: Float[Array, "horizon lanes width"] | None = None  # before each step
    extras: dict[str, Array] | None = None  # of acting, [horizon, lanes] each


@final
@dataclass(frozen=True)
class RolloutBuffer(Buffer):
    """Stores the newest `horizon` steps of every lane."""

    spec: Spec
    horizon: int
    lanes: int
    recurrent_width: int = 0  # numbers of a recurrent state, if there is one
    extras: tuple[str, ...] = ()  # one number a step each

    @property
    def num_slots(self) -> int:
        return self.horizon + 1

    def init(self) -> RolloutState:
        shape, width = (self.horizon, self.lanes), self.recurrent_width
        return RolloutState(
            storage=init_storage(self.spec, *shape),
            valid=jnp.zeros(shape, bool),
            cursor=jnp.int32(0),
            recurrent_state=jnp.zeros((*shape, width)) if width else None,
            extras={name: jnp.zeros(shape) for name in self.extras} or None,
        )

    def add(self, state: RolloutState, chunk: Chunk) -> RolloutState:
        """Append steps of every lane; the first place follows the last one."""
        assert chunk.first_lane is None, "a rollout takes the steps of all lanes together"
        assert len(chunk.valid) < self.num_slots, "a chunk does not fit a lane"
        new = (chunk.steps, chunk.valid, chunk.recurrent_state, chunk.extras)
        cursor = jnp.zeros_like(state.cursor)
        if len(chunk.valid) < self.horizon:  # else nothing of the old rollout stays
            old = (state.storage, state.valid, state.recurrent_state, state.extras)
            time = (state.cursor + jnp.arange(len(chunk.valid), dtype=jnp.int32)) % self.horizon
            new = jax.tree.map(lambda x, row: x.at[time].set(row.astype(x.dtype)), old, new)
            cursor = (state.cursor + len(chunk.valid)) % self.horizon
        storage, valid, recurrent_state, extras = new
        return RolloutState(storage, valid, cursor, recurrent_state, extras)

    def newest(self, state: RolloutState) -> Chunk:
        """The oldest step is under the cursor."""
        stored = (state.storage, state.valid, state.extras)
        steps, valid, extras = jax.tree.map(lambda x: jnp.roll(x, -state.cursor, axis=0), stored)
        return Chunk(steps, valid, extras=extras)

    def sample(self, state: RolloutState, key: Key, hyper: Hyper) -> tuple[Trajectory, None]:
        """Return all steps in order. A row that is `last` but not valid cuts the open episode: the
        step before it counts as its last."""
        steps, valid, _, extras, _ = self.newest(state)
        cut = steps.last & ~valid
        followed_by_cut = jnp.concatenate([cut[1:], jnp.zeros_like(cut[:1])])
        recurrent = state.recurrent_state
        trajectory = Trajectory(
            observation=steps.observation,
            action=steps.action,
            reward=hyper["reward_scale"] * steps.reward,
            discount=hyper["gamma"] * (1.0 - steps.terminated),
            last=steps.last | followed_by_cut,
            next_observation=steps.next_observation,
            valid=valid,
            memory=None if recurrent is None else recurrent[state.cursor],
            extras=extras,
        )
        return trajectory, None
