"""The episode runner of native environments: an episode of every row in one program."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from understudy.buffers import Buffer
from understudy.envs.base import NativeEnv
from understudy.training.actions import initial_memory, to_real
from understudy.training.episode_runner import EpisodePlan, EpisodeResults, EpisodeRunner, OnChunk
from understudy.training.program_cache import shared
from understudy.training.seed_axis import fold_in
from understudy.types import Chunk, Key, Step, Tree


class _Carry(NamedTuple):
    """What a program carries from step to step."""

    env: Tree
    observation: Array
    memory: Tree
    open: Bool[Array, " rows"]  # whether the row's episode goes on
    results: EpisodeResults
    experience: Any  # the buffer's state, or None
    time: Int32[Array, ""]


@final
class NativeEpisodeRunner(EpisodeRunner):
    """Native environments: whole episodes on the device."""

    def __init__(self, plan: EpisodePlan, env: NativeEnv, buffer: Buffer | None = None):
        """`play` adds steps to the `buffer`, if there is one, with a lane for every row."""
        self._plan, self._env, self._buffer = plan, env, buffer
        self._rows = plan.num_policies * plan.episodes
        self._limit = min(plan.episode_length or env.max_steps, env.max_steps)
        self._act = plan.act_function()

    def run(
        self, policies: Any, episode: int = 0, fresh: bool = False, on_chunk: OnChunk | None = None
    ) -> EpisodeResults:
        """Run the plan's own episodes. Programs that need others, or their steps, call `play`."""
        assert not (episode or fresh or on_chunk)
        return self._run_program(policies, self._plan.keys())

    @cached_property
    def _run_program(self) -> Callable[[Any, Key], EpisodeResults]:
        return _make_run_program(self._plan.unseeded, self._env)

    def play(self, policies: Any, keys: Key, experience: Any = None) -> tuple[EpisodeResults, Any]:
        """Run the episodes that `keys` [policies] begin, and add their steps to the buffer's state.
        A pure function."""
        start = self._begin(policies, keys, experience)

        def unfinished(carry: _Carry) -> Array:
            return jnp.any(carry.open) & (carry.time < self._limit)

        end = jax.lax.while_loop(unfinished, lambda carry: self._step(policies, keys, carry), start)
        return end.results, end.experience

    def _begin(self, policies: Any, keys: Key, experience: Any) -> _Carry:
        def row_keys(key: Key) -> Array:
            return jax.random.split(jax.random.split(key)[0], self._plan.episodes)

        plan, rows = self._plan, self._rows
        env, observation = jax.vmap(self._env.reset)(jax.vmap(row_keys)(keys).reshape(rows, 2))
        described = None if plan.descriptor is None else jnp.zeros((rows, plan.descriptor.size))
        return _Carry(
            env=env,
            observation=observation,
            memory=initial_memory(plan.algorithm, policies, *plan.shape),
            open=jnp.ones(rows, bool),
            results=EpisodeResults(jnp.zeros(rows), jnp.zeros(rows, jnp.int32), described),
            experience=experience,
            time=jnp.int32(0),
        )

    def _step(self, policies: Any, keys: Key, carry: _Carry) -> _Carry:
        plan, rows, counted = self._plan, self._rows, carry.open
        act_keys = jax.vmap(lambda key: jax.random.split(key)[1])(keys)
        step_keys = jax.vmap(
            lambda key: jax.random.split(jax.random.fold_in(key, carry.time), plan.episodes)
        )(act_keys).reshape(rows, 2)
        seen = carry.observation.reshape(*plan.shape, *carry.observation.shape[1:])
        first = jnp.broadcast_to(carry.time == 0, plan.shape)
        if plan.draws:
            act_keys = fold_in(fold_in(keys, 2), carry.time)
        action, memory = self._act(policies, carry.memory, seen, first, act_keys)
        action = action.reshape(rows, *action.shape[2:])
        after = jax.vmap(self._env.step)(carry.env, to_real(action, plan.spec), step_keys)
        last = after.terminated | after.truncated | (carry.time + 1 >= self._limit)
        experience = carry.experience
        if experience is not None:
            steps = Step(
                carry.observation, action, after.reward, after.terminated, last, after.observation
            )
            assert self._buffer is not None
            chunk = Chunk.of_one_step(steps, counted & _is_finite(steps))
            experience = self._buffer.add(experience, chunk)
        results = EpisodeResults(
            returns=carry.results.returns + jnp.where(counted, after.reward, 0.0),
            lengths=carry.results.lengths + counted,
            descriptors=self._describe(carry, after.state, after.observation),
        )
        return _Carry(
            after.state, after.observation, memory, counted & ~last, results, experience,
            carry.time + 1,
        )  # fmt: skip

    def _describe(self, carry: _Carry, state: Tree, observation: Array) -> Array | None:
        """The descriptors with this step, in the rows whose episode it belongs to."""
        descriptor = self._plan.descriptor
        if descriptor is None:
            return None
        so_far = carry.results.descriptors
        now = jax.vmap(descriptor.of)(state, observation).astype(jnp.float32)
        if descriptor.over == "mean":
            # A running mean: no sum is divided by a number of steps that may be zero.
            now = so_far + (now - so_far) / (carry.results.lengths[:, None] + 1.0)
        return jnp.where(carry.open[:, None], now, so_far)

    def close(self) -> None:
        """Nothing is stored outside the device's memory."""


@shared
def _make_run_program(plan: EpisodePlan, env: NativeEnv) -> Callable[[Any, Key], EpisodeResults]:
    runner = NativeEpisodeRunner(plan, env)

    def understudy_run_episodes(policies: Any, keys: Key) -> EpisodeResults:
        return runner.play(policies, keys)[0]

    return jax.jit(understudy_run_episodes)


def _is_finite(step: Step) -> Bool[Array, " rows"]:
    """Whether all numbers are finite. One that is not would spoil every batch with it."""
    rows = len(step.reward)
    parts = (step.action, step.next_observation)
    sums = (jnp.sum(part.reshape(rows, -1), axis=-1, dtype=jnp.float32) for part in parts)
    return jnp.isfinite(sum(sums, step.reward))
