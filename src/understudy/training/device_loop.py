"""The device loop: native environments, replay and updates in one scan on the accelerator.

One iteration is: act → step (and reset what ended) → add → update. Long stretches run as one
compiled program of a fixed number of iterations. Whether an iteration acts at random or updates
comes from the update schedule, unbatched; in the steady part of a run it is known beforehand, and
the program holds no conditional at all.
"""

import math
import time
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms.base import Memory
from understudy.algorithms.optim import when
from understudy.envs.base import NativeEnv
from understudy.networks.encoders import reset_recurrent_state
from understudy.state_dict import StateDict, load_state_dict, state_dict
from understudy.training.actions import choose_actions, to_real
from understudy.training.devices import divides_rows
from understudy.training.learner import move, observe, observed_last, updates
from understudy.training.open_episodes import EndedEpisode
from understudy.training.program_cache import shared
from understudy.training.seed_axis import ACTING, ENVIRONMENT, over_seeds, seed_keys
from understudy.training.trainer import States, Trainer, TrainingSetup
from understudy.training.update import LearnerState
from understudy.types import Chunk, Key, Step, Tree

ITERATIONS_PER_PROGRAM = 100  # as many as between two rows of the log, by default
EPISODES_REMEMBERED = 64  # per seed, between two logs


class Episodes(NamedTuple):
    """Open episodes' sums, and the latest ones that ended."""

    open_return: Float[Array, " envs"]
    open_length: Int32[Array, " envs"]
    returns: Float[Array, " remembered"]
    lengths: Int32[Array, " remembered"]
    ended: Int32[Array, ""]


class World(NamedTuple):
    """What stepping changes."""

    env: Any
    observation: Array
    first: Bool[Array, " envs"]
    memory: Tree
    act_key: Key
    env_key: Key
    episodes: Episodes


Carry = tuple[LearnerState, Any, World]  # the learner, the buffer's state, the environments
Moved = dict[str, Array]  # hyper-parameters and their scheduled values


class When(NamedTuple):
    """What one iteration does, by the update schedule. Plain bools where it is known beforehand."""

    active: Any
    random: Any
    count: Any  # of updates after it
    index: Any  # of the first of them


class Block(NamedTuple):
    """What a regular update schedule repeats."""

    updates: int  # after the last iteration of a block
    iterations: int
    blocks: int  # in a program


@final
class DeviceTrainer(Trainer):
    """Trains K seeds on K × N native environments without leaving the device."""

    def __init__(self, setup: TrainingSetup, env: NativeEnv):
        self.states = States(*self.initialize(setup))
        self._known = np.zeros(setup.num_seeds, np.int64)  # ended episodes, see `new_episodes`
        schedule, block, self.chunk_iterations = self.update_schedule, None, ITERATIONS_PER_PROGRAM
        if schedule.regular:
            blocks = math.ceil(ITERATIONS_PER_PROGRAM / schedule.block_iterations)
            block = Block(schedule.block_updates, schedule.block_iterations, blocks)
            self.chunk_iterations = blocks * block.iterations
        self.least_iterations = self.chunk_iterations
        programs = _programs(setup.unseeded, env, block, self.sharding)
        begin, self.general_program, self.steady_program = programs
        streams = [seed_keys(setup.seed, setup.num_seeds, name) for name in (ACTING, ENVIRONMENT)]
        self.world = begin(self.learner.state, *jax.device_put(streams, self.sharding))

    def advance(self, iterations: int) -> None:
        stop = self.position.iterations + iterations
        while self.position.iterations < stop and not self.interrupted:
            start = self.position.iterations
            count = min(self.chunk_iterations, stop - start)
            if count == self.chunk_iterations and self.update_schedule.steady(start, start + count):
                program, plan = self.steady_program, np.int32(self.position.updates)
            else:
                program, plan = self.general_program, self.plan_iterations(start, count)
            # They are there already, unless they were loaded or read in between.
            carried = jax.device_put((self.learner, self.experience, self.world), self.sharding)
            moved = self.scheduled_values(start)
            self.learner, self.experience, self.world = program(carried, plan, moved)
            self.position.iterations += count
            self.position.updates += self.update_schedule.updates_between(start, start + count)

    def plan_iterations(self, start: int, count: int) -> When:
        """What each iteration of a program does; those beyond `count` do nothing."""
        iterations = range(start, start + self.chunk_iterations)
        owed = np.array([self.update_schedule.updates_after(i) for i in iterations])
        active = np.arange(self.chunk_iterations) < count
        return When(
            active=active,
            random=np.array([self.update_schedule.random(i) for i in iterations]),
            count=np.where(active, owed, 0).astype(np.int32),
            index=(self.position.updates + np.cumsum(owed) - owed).astype(np.int32),
        )

    def scheduled_values(self, start: int) -> dict[str, np.ndarray]:
        """The scheduled values at each iteration of a program, [seeds, iterations]."""
        if self.hyper_schedules is None:
            return {}
        iterations = range(start, start + self.chunk_iterations)
        values = self.hyper_schedules.over(i * self.setup.num_envs for i in iterations)
        return {name: values[..., place] for place, name in enumerate(self.hyper_schedules.names)}

    def episodes(self) -> list[EndedEpisode]:
        """The latest episodes since the last call."""
        self._known[:] = 0
        latest = self.new_episodes()
        fresh = self.world.episodes._replace(ended=jnp.zeros_like(self.world.episodes.ended))
        self.world, self._known[:] = self.world._replace(episodes=fresh), 0
        return latest

    def new_episodes(self) -> list[EndedEpisode]:
        """At most the latest `EPISODES_REMEMBERED` of a seed. When and in which environment each
        one ended is not stored."""
        _, _, returns, lengths, ended = jax.device_get(self.world.episodes)
        known, self._known = np.maximum(self._known, ended - EPISODES_REMEMBERED), ended.copy()
        now = time.perf_counter()
        return [
            EndedEpisode(
                seed, float(returns[seed, at]), int(lengths[seed, at]), None, self.steps, now
            )
            for seed in range(len(ended))
            for at in np.arange(known[seed], ended[seed]) % EPISODES_REMEMBERED
        ]

    def _acting_state_dict(self) -> StateDict:
        return state_dict(self.world)

    def _load_acting(self, acting: StateDict) -> None:
        self.world = load_state_dict(self.world, acting)
        self._known = np.array(self.world.episodes.ended, np.int64)

    def close(self) -> None:
        """Nothing is stored outside the device's memory."""


@shared
def _programs(
    setup: TrainingSetup, env: NativeEnv, block: Block | None, sharding: NamedSharding | None
) -> tuple[Any, Any, Any]:
    """The program that makes the first world, the one of any iterations, and the one of steady
    iterations, if the update schedule is regular."""
    loop = Loop(setup, env, block)

    def compiled(program: Any) -> Any:
        lifted = over_seeds(program, setup.num_seeds, shared=(1,))
        return jax.jit(divides_rows(lifted, sharding), donate_argnums=0, out_shardings=sharding)

    begin = jax.jit(jax.vmap(loop.begin), out_shardings=sharding)
    return begin, compiled(loop.general), None if block is None else compiled(loop.steady)


@final
class Loop:
    """The iteration of one seed as pure functions."""

    def __init__(self, setup: TrainingSetup, env: NativeEnv, block: Block | None):
        self._algorithm, self._env, self._spec = setup.algorithm, env, setup.spec
        self._num_envs, self._block = setup.num_envs, block
        self._buffer = setup.buffer

    def begin(self, state: Any, act_key: Key, env_key: Key) -> World:
        env_key, reset_key = jax.random.split(env_key)
        env, observation = jax.vmap(self._env.reset)(jax.random.split(reset_key, self._num_envs))
        episodes = Episodes(
            open_return=jnp.zeros(self._num_envs),
            open_length=jnp.zeros(self._num_envs, jnp.int32),
            returns=jnp.zeros(EPISODES_REMEMBERED),
            lengths=jnp.zeros(EPISODES_REMEMBERED, jnp.int32),
            ended=jnp.int32(0),
        )
        first = jnp.ones(self._num_envs, bool)
        memory = self._algorithm.memory(self._algorithm.policy(state), self._num_envs)
        return World(env, observation, first, memory, act_key, env_key, episodes)

    def general(self, carry: Carry, plan: When, moved: Moved) -> Carry:
        """Any iterations: the plan says what each one does."""

        def iteration(carry: Carry, at: tuple[When, Moved]) -> tuple[Carry, None]:
            now, moved = at
            return when(now.active, lambda: self._iterate(carry, now, moved), lambda: carry), None

        return jax.lax.scan(iteration, carry, (plan, moved))[0]

    def steady(self, carry: Carry, first_index: Int32[Array, ""], moved: Moved) -> Carry:
        """Whole blocks of acting by policy, each followed by its updates: no conditionals."""
        assert self._block is not None
        updates_each, iterations, blocks = self._block

        def block(carry: Carry, now: tuple[Int32[Array, ""], Moved]) -> tuple[Carry, None]:
            index, moved = now
            acting = When(active=True, random=False, count=0, index=index)
            if iterations > 1:
                before = jax.tree.map(lambda x: x[:-1], moved)
                carry, _ = jax.lax.scan(
                    lambda c, m: (self._iterate(c, acting, m), None), carry, before, iterations - 1
                )
            final = jax.tree.map(lambda x: x[-1], moved)
            return self._iterate(carry, acting._replace(count=updates_each), final), None

        indices = first_index + updates_each * jnp.arange(blocks, dtype=jnp.int32)
        by_block = jax.tree.map(lambda x: x.reshape(blocks, iterations), moved)
        return jax.lax.scan(block, carry, (indices, by_block))[0]

    def _iterate(self, carry: Carry, now: When, moved: Moved) -> Carry:
        learner, experience, world = carry
        learner = move(learner, moved)
        recurrent_state = None
        if isinstance(world.memory, Memory):
            recurrent_state = reset_recurrent_state(world.memory.recurrent_state, world.first)
        world, step, extras = self._step(learner.state, world, now.random)
        valid = jnp.ones(self._num_envs, bool)
        chunk = Chunk.of_one_step(step, valid, recurrent_state, **extras)
        experience = self._buffer.add(experience, chunk)
        if not observed_last(self._algorithm):  # otherwise after the updates of the rollout
            learner = observe(learner, chunk)
        # Where the schedule is regular, a whole block of updates follows an iteration, or none.
        count = now.count if self._block is None else self._block.updates
        learner, priorities = when(
            now.count > 0,
            lambda: updates(self._algorithm, self._buffer, learner, experience, now.index, count),
            lambda: (learner, self._buffer.get_priorities(experience)),
        )
        return learner, self._buffer.with_priorities(experience, priorities), world

    def _step(self, state: Any, world: World, random: Any) -> tuple[World, Step, dict[str, Array]]:
        """Act, step every environment, and reset those whose episode ended."""
        act_key, noise_key = jax.random.split(world.act_key)
        action, memory, extras = choose_actions(
            self._algorithm, self._spec, self._algorithm.policy(state), world.memory,
            world.observation, world.first, noise_key, random,
        )  # fmt: skip
        env_key, step_key, reset_key = jax.random.split(world.env_key, 3)
        step_keys = jax.random.split(step_key, self._num_envs)
        after = jax.vmap(self._env.step)(world.env, to_real(action, self._spec), step_keys)
        last = after.terminated | after.truncated
        happened = Step(
            world.observation, action, after.reward, after.terminated, last, after.observation
        )
        fresh = jax.vmap(self._env.reset)(jax.random.split(reset_key, self._num_envs))
        env, observation = jax.vmap(select)(last, fresh, (after.state, after.observation))
        episodes = count_episodes(world.episodes, after.reward, last)
        world = World(env, observation, last, memory, act_key, env_key, episodes)
        return world, happened, extras


def select(flag: Bool[Array, ""], yes: Tree, no: Tree) -> Tree:
    """Return `yes` if the flag is set, else `no`; both are computed."""
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), yes, no)


def count_episodes(
    episodes: Episodes, reward: Float[Array, " envs"], last: Bool[Array, " envs"]
) -> Episodes:
    """Take one step's rewards into the sums, and remember the episodes that ended in it."""
    total, length = episodes.open_return + reward, episodes.open_length + 1
    # Ended episodes take consecutive places in a small ring; the others write to no place.
    place = (episodes.ended + jnp.cumsum(last) - 1) % EPISODES_REMEMBERED
    place = jnp.where(last, place, EPISODES_REMEMBERED)
    return Episodes(
        open_return=jnp.where(last, 0.0, total),
        open_length=jnp.where(last, 0, length),
        returns=episodes.returns.at[place].set(total, mode="drop"),
        lengths=episodes.lengths.at[place].set(length, mode="drop"),
        ended=episodes.ended + jnp.sum(last, dtype=jnp.int32),
    )
