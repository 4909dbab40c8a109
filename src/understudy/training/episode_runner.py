"""Episodes played to be judged, one a row, all begun together: what evaluation and
quality-diversity are made of.

Rows are member × episode. A row that has finished its episode is ignored until the last one has,
so that what is told of an episode (return, length, descriptor) is told of all of it and of nothing
else. Members may be many: a repertoire is played as one policy a member.
"""

import dataclasses
import logging
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32

from understudy.algorithms.base import Algorithm
from understudy.buffers import Buffer
from understudy.envs.base import HostEnvs, HostStep, NativeEnv
from understudy.envs.descriptors import Descriptor
from understudy.training.actions import initial_memory, to_real, uniform_actions
from understudy.training.program_cache import shared
from understudy.training.seed_axis import over_seeds
from understudy.types import Chunk, Key, Spec, Step, Tree

MOST_STEPS = 27_000  # of an episode; Atari's half an hour, the longest limit in use
ENDLESS_STEPS = 5_000  # of one where the environment states no time limit

_log = logging.getLogger("understudy.training")


@final
@dataclasses.dataclass(frozen=True)
class Mode:
    """How actions are chosen while episodes are played."""

    explore: bool = False  # by a draw from the policy, or with the algorithm's own noise
    epsilon: float = 0.0  # the share of actions that are uniformly random

    @property
    def draws(self) -> bool:
        return self.explore or self.epsilon > 0


DETERMINISTIC = Mode()


class Played(NamedTuple):
    """What became of each row's episode. Arrays of JAX or of NumPy."""

    total: Any  # [rows] its return
    steps: Any  # [rows]
    descriptor: Any  # [rows, size]; None where behaviors are not described


class EpisodeStep(NamedTuple):
    """A step of all rows on the host."""

    step: Step
    valid: np.ndarray  # [rows] bool: whether it belongs to the episode that is played


EpisodeSteps = Generator[EpisodeStep, None, Played]  # the steps, and in the end what became of them


def finish(
    episode_steps: EpisodeSteps, tell: Callable[[EpisodeStep], None] | None = None
) -> Played:
    """Play on to the end; every step is told."""
    while True:
        try:
            told = next(episode_steps)
        except StopIteration as end:
            return end.value
        if tell is not None:
            tell(told)


class _Carry(NamedTuple):
    """What a program carries from step to step."""

    env: Tree
    observation: Array
    memory: Tree
    playing: Bool[Array, " rows"]
    played: Played
    experience: Any  # the buffer's state, or None
    time: Int32[Array, ""]


@final
class NativeEpisodeRunner:
    """Native environments: an episode of every row in one program."""

    def __init__(
        self,
        algorithm: Algorithm,
        env: NativeEnv,
        spec: Spec,
        shape: tuple[int, int],
        descriptor: Descriptor | None = None,
        episode_length: int | None = None,
        mode: Mode = DETERMINISTIC,
        buffer: Buffer | None = None,
    ):
        """`shape` is (members, episodes). Steps are added to the `buffer`, if there is one, with a
        lane for every row."""
        self._algorithm, self._env, self._spec = algorithm, env, spec
        self._buffer = buffer
        (self._members, self._episodes), self._descriptor = shape, descriptor
        self._limit = min(episode_length or env.max_steps, env.max_steps)
        self._act, self._draws = act_program(algorithm, shape[0], spec, mode), mode.draws

    def play(self, policies: Any, keys: Key, experience: Any = None) -> tuple[Played, Any]:
        """Pure. `policies` and `keys` have a member axis; `experience` is the buffer's state."""
        start = self._begin(policies, keys, experience)

        def unfinished(carry: _Carry) -> Array:
            return jnp.any(carry.playing) & (carry.time < self._limit)

        end = jax.lax.while_loop(unfinished, lambda carry: self._step(policies, keys, carry), start)
        return end.played, end.experience

    def _begin(self, policies: Any, keys: Key, experience: Any) -> _Carry:
        def row_keys(key: Key) -> Array:
            return jax.random.split(jax.random.split(key)[0], self._episodes)

        rows = self._members * self._episodes
        env, observation = jax.vmap(self._env.reset)(jax.vmap(row_keys)(keys).reshape(rows, 2))
        size = self._descriptor.size if self._descriptor else None
        described = None if size is None else jnp.zeros((rows, size))
        return _Carry(
            env=env,
            observation=observation,
            memory=initial_memory(self._algorithm, policies, self._members, self._episodes),
            playing=jnp.ones(rows, bool),
            played=Played(jnp.zeros(rows), jnp.zeros(rows, jnp.int32), described),
            experience=experience,
            time=jnp.int32(0),
        )

    def _step(self, policies: Any, keys: Key, carry: _Carry) -> _Carry:
        rows, by_member = len(carry.playing), (self._members, self._episodes)
        act_keys = jax.vmap(lambda key: jax.random.split(key)[1])(keys)
        step_keys = jax.vmap(
            lambda key: jax.random.split(jax.random.fold_in(key, carry.time), self._episodes)
        )(act_keys).reshape(rows, 2)
        seen = carry.observation.reshape(*by_member, *carry.observation.shape[1:])
        first = jnp.broadcast_to(carry.time == 0, by_member)
        if self._draws:
            act_keys = keys_at(jax.vmap(jax.random.fold_in, (0, None))(keys, 2), carry.time)
        action, memory = self._act(policies, carry.memory, seen, first, act_keys)
        action = action.reshape(rows, *action.shape[2:])
        after = jax.vmap(self._env.step)(carry.env, to_real(action, self._spec), step_keys)
        last = after.terminated | after.truncated | (carry.time + 1 >= self._limit)
        experience = carry.experience
        if experience is not None:
            happened = Step(
                carry.observation, action, after.reward, after.terminated, last, after.observation
            )
            assert self._buffer is not None
            valid = carry.playing & _is_sound(happened)
            experience = self._buffer.add(experience, Chunk.of_one_step(happened, valid))
        played = Played(
            total=carry.played.total + jnp.where(carry.playing, after.reward, 0.0),
            steps=carry.played.steps + carry.playing,
            descriptor=self._describe(carry, after.state, after.observation),
        )
        playing = carry.playing & ~last
        return _Carry(
            after.state, after.observation, memory, playing, played, experience, carry.time + 1
        )

    def _describe(self, carry: _Carry, state: Tree, observation: Array) -> Array | None:
        """With this step taken in, where it belongs to the episode."""
        if self._descriptor is None:
            return None
        so_far = carry.played.descriptor
        assert so_far is not None
        now = jax.vmap(self._descriptor.of)(state, observation).astype(jnp.float32)
        if self._descriptor.over == "mean":
            # As a running mean: no sum to be divided by a number of steps that may be zero.
            now = so_far + (now - so_far) / (carry.played.steps[:, None] + 1.0)
        return jnp.where(carry.playing[:, None], now, so_far)


@final
class HostEpisodeRunner:
    """Gymnasium environments, stepped with all members' policies in one fused act."""

    def __init__(
        self,
        algorithm: Algorithm,
        envs: HostEnvs,
        shape: tuple[int, int],
        descriptor: Descriptor | None = None,
        episode_length: int | None = None,
        limited: bool = True,
        mode: Mode = DETERMINISTIC,
        keys: Key | None = None,
    ):
        """`shape` is (members, episodes). Episodes end after `episode_length` steps, if one is
        given; `limited` says whether the environments state a time limit of their own. A `mode`
        that draws needs a key for each member."""
        self.envs = envs
        self._members, self._episodes = members, episodes = shape
        self._descriptor = descriptor
        self._limit, self._limited, self._said = episode_length, limited, False
        self._act = compiled_act(algorithm, members, envs.spec, mode)
        self._begin = lambda policies: initial_memory(algorithm, policies, members, episodes)
        self._keys = jnp.zeros((members, 2), jnp.uint32) if keys is None else keys
        self._draws = mode.draws

    def play(self, policies: Any, observation: np.ndarray) -> Played:
        """From the first `observation` of every row. Environments whose episode has ended are not
        stepped further, where that can be."""
        return finish(self.steps(policies, observation, only=self.envs.steps_rows))

    def _most_steps(self) -> int:
        """Of an episode; where nothing else would end it, that is said before it begins, once."""
        if self._limited:
            return MOST_STEPS
        most = min(ENDLESS_STEPS, MOST_STEPS)
        if not self._said:
            _log.warning(
                "the environment states no time limit: an episode of an evaluation is cut off "
                "after %d steps", most,
            )  # fmt: skip
        self._said = True
        return most

    def steps(
        self,
        policies: Any,
        observation: np.ndarray,
        tries: int | None = None,
        only: bool = False,
    ) -> EpisodeSteps:
        """As `play`, step by step. An episode that a fault has cut is played again; where that was
        the last of its `tries`, or the policy gives what is no number, its return is NaN. With
        `only`, rows that have finished are not stepped on."""
        rows, memory = len(observation), self._begin(policies)
        most = self._limit or self._most_steps()
        tally = _Tally(rows, self._descriptor, most, tries)
        first, by_member = np.ones(rows, bool), (self._members, self._episodes)
        keys, time = self._keys, 0
        while tally.playing.any():
            seen = observation.reshape(*by_member, *observation.shape[1:])
            if self._draws:
                keys, time = keys_at(self._keys, time), time + 1
            action, memory = self._act(policies, memory, seen, first.reshape(by_member), keys)
            action = np.asarray(action).reshape(rows, *action.shape[2:])
            if tries is not None:
                tally.give_up(np.logical_not(np.isfinite(action).reshape(rows, -1).all(axis=1)))
            playing = tally.playing
            step = self.envs.step(action, playing) if only else self.envs.step(action)
            last = tally.take(step)
            facts: Any = (observation, action, step.reward, step.terminated, last)
            happened = Step(*facts, next_observation=step.next_observation)  # type: ignore
            yield EpisodeStep(happened, playing & step.valid)
            observation, first = step.observation, step.last
        if tally.unended and self._limit is None:
            _log.warning(
                "%d episodes of an evaluation had not ended after %d steps: their returns are "
                "those up to there", tally.unended, most,
            )  # fmt: skip
        return Played(tally.total, tally.steps, tally.described)


@final
class _Tally:
    """The open episodes of a `HostEpisodeRunner`."""

    def __init__(self, rows: int, descriptor: Descriptor | None, limit: int, tries: int | None):
        self.total, self.steps = np.zeros(rows), np.zeros(rows, np.int32)
        self.playing, self.unended = np.ones(rows, bool), 0
        self.described = None if descriptor is None else np.zeros((rows, descriptor.size), "f4")
        self._descriptor, self._limit = descriptor, limit
        self._tries = np.full(rows, np.iinfo(np.int64).max if tries is None else tries)

    def take(self, step: HostStep) -> np.ndarray:
        """Count a step in; gives [rows], where an episode's last step was."""
        valid, cut = self.playing & step.valid, self.playing & step.last & ~step.valid
        self.total = np.where(valid, self.total + step.reward, self.total)
        self.steps = self.steps + valid
        at_limit = valid & (self.steps >= self._limit)
        last = step.last | at_limit
        self.unended += int((at_limit & ~step.last).sum())
        if self.described is not None:
            self._describe(step.descriptor, valid)
        self._tries[cut] -= 1
        self.total[cut], self.steps[cut] = 0.0, 0
        self.playing = self.playing & ~(last & valid)
        self.give_up(cut & (self._tries <= 0))
        return last

    def give_up(self, rows: np.ndarray) -> None:
        """Those of these that are still played have failed."""
        failed = self.playing & rows
        self.total[failed] = np.nan
        self.playing = self.playing & ~failed

    def _describe(self, now: np.ndarray | None, valid: np.ndarray) -> None:
        assert now is not None and self._descriptor is not None and self.described is not None
        if self._descriptor.over == "mean":
            # The first step's takes the place of whatever an episode that was cut has left.
            share = np.float32(1) / np.maximum(self.steps, 1)[:, None].astype(np.float32)
            now = np.where(share == 1, now, self.described + (now - self.described) * share)
        self.described = np.where(valid[:, None], now, self.described)


def _is_sound(step: Step) -> Bool[Array, " rows"]:
    """Whether all numbers are finite. One that is not would spoil every batch it is drawn into."""
    rows = len(step.reward)
    parts = (step.action, step.next_observation)
    sums = (jnp.sum(part.reshape(rows, -1), axis=-1, dtype=jnp.float32) for part in parts)
    return jnp.isfinite(sum(sums, step.reward))


@jax.jit
def keys_at(keys: Key, time: int | Int32[Array, ""]) -> Key:
    """A key for each member at this step."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, time)


def act_program(
    algorithm: Algorithm, members: int, spec: Spec, mode: Mode = DETERMINISTIC
) -> Callable[..., tuple[Array, Tree]]:
    """All members' actions, each for its own rows."""

    def act(
        policy: Any, memory: Tree, observation: Array, first: Array, key: Key
    ) -> tuple[Array, Tree]:
        action, memory, _ = algorithm.act(policy, memory, observation, first, key, mode.explore)
        if mode.epsilon == 0:
            return action, memory
        rows = len(first)
        which, what = jax.random.split(jax.random.fold_in(key, 1))
        at_random = jax.random.uniform(which, (rows,)) < mode.epsilon
        at_random = at_random.reshape(rows, *[1] * (action.ndim - 1))
        return jnp.where(at_random, uniform_actions(spec, rows, what), action), memory

    return over_seeds(act, members)


@shared
def compiled_act(
    algorithm: Algorithm, members: int, spec: Spec, mode: Mode
) -> Callable[..., tuple[Array, Tree]]:
    """The same, compiled."""
    return jax.jit(act_program(algorithm, members, spec, mode))
