"""The two kinds of environments inside the library.

*Host* environments (Gymnasium) step on the CPU, many at a time: `HostEnvs`. *Native* ones are
pure functions that run on the accelerator: `NativeEnv`. Native environments never reset
themselves; host environments reset an ended row within its step and report both observations.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from understudy.envs.descriptors import Descriptor
from understudy.envs.env_changes import EnvChanges
from understudy.envs.episode_info import EpisodeInfo
from understudy.envs.fault_guard import FaultCounter, Guard, Report
from understudy.envs.spaces import ActionMap
from understudy.envs.step_arrays import StepArrays
from understudy.observation_packing import Packer
from understudy.types import Action, Continuous, EnvironmentError, Joint, Key, Spec


class HostStep(NamedTuple):
    """What M environments report after one step.

    Arrays are fresh each time, but two of them may be the same object: where no episode ended,
    `observation` may be `next_observation`. `valid` may be read-only.

    A row that is not `valid` but `last` was *cut*: its environment failed, so the open episode
    ended with the step before, truncated, and the next one has begun.
    """

    reward: np.ndarray  # [M] float32, raw
    terminated: np.ndarray  # [M] bool
    last: np.ndarray  # [M] bool: terminated or truncated
    next_observation: np.ndarray  # [M, ...]: the true next observation, also at an episode's end
    observation: np.ndarray  # [M, ...]: what to act on now (the reset one where `last`)
    valid: np.ndarray  # [M] bool: False where this row is no transition (reset only, cut, left)
    descriptor: np.ndarray | None = None  # [M, size] float32, if requested; NaN where none


class HostEnvs(abc.ABC):
    """M Gymnasium environments stepped together.

    Actions arrive normalized (continuous: float32 [M, size] in [-1, 1]; discrete: int [M]) and
    are mapped to the real space here. Every reset is seeded: environment `i` starts its episode
    number `e` with `seeds(i, e)`.
    """

    replayable: ClassVar[bool] = True
    """Whether `replay` can return to open episodes."""
    steps_rows: ClassVar[bool] = True
    """Whether `step` can leave some environments out."""

    def __init__(self, specs: Sequence[Spec], guard: Guard, descriptor: Descriptor | None = None):
        """`specs` are those of all environments, which must be equal."""
        if not specs:
            raise EnvironmentError("at least one environment is needed, got 0")
        for row, spec in enumerate(specs):
            if spec != specs[0]:
                raise EnvironmentError(
                    f"environment {row} differs from environment 0: expected {specs[0]}, got {spec}"
                )
        self.spec, self.num_envs = specs[0], len(specs)
        self.packer = Packer(self.spec.observation)
        self.action_map = ActionMap(self.spec.action)
        # [M] the number of each environment's open episode; -1 before the first reset.
        self.episodes = np.full(self.num_envs, -1, np.int64)
        self.changes = EnvChanges()
        self.applied = np.zeros(self.num_envs, np.int64)  # [M] changes before the open episode
        self.fault_counter = FaultCounter(guard)
        self.faults = self.fault_counter.counts  # how often each kind was survived, so far
        self.infos: dict[int, EpisodeInfo] = {}  # of ended episodes, by row, until they are taken
        self.all_rows = slice(0, self.num_envs)
        self._all_valid = np.ones(self.num_envs, np.bool_)
        self._all_valid.flags.writeable = False
        # What was acted on.
        self._acted_on = np.zeros((self.num_envs, *self.packer.shape), self.packer.dtype)
        self.step_layout = self._make_layout(descriptor)

    def set_action_space(self, action: Action) -> None:
        """Take actions in this form from now on: the environments' own, or a `Joint` of it."""
        own, wanted = (
            form.of if isinstance(form, Joint) else form for form in (self.spec.action, action)
        )
        if own != wanted:
            raise EnvironmentError(f"the environments take {own} as actions, not {action}")
        self.spec, self.action_map = Spec(self.spec.observation, action), ActionMap(action)

    def reset(self) -> np.ndarray:
        """Start the next episode everywhere; returns observations [M, ...]."""
        return self._begin_all(self.episodes + 1)

    def restart(self, episode: int = 0) -> np.ndarray:
        """Start the episode of that number everywhere; returns observations [M, ...]."""
        return self._begin_all(np.full(self.num_envs, episode))

    def _begin_all(self, episodes: np.ndarray) -> np.ndarray:
        until = np.full(self.num_envs, self.changes.total)
        return self.begin_episodes(episodes, [()] * self.num_envs, until)

    def replay(
        self, episodes: np.ndarray, actions: Sequence[np.ndarray], until: np.ndarray | None = None
    ) -> np.ndarray:
        """Return to the middle of open episodes: `episodes` [M] are their numbers, `actions[i]`
        [steps, ...] the normalized actions since their resets, `until` [M] the number of changes
        before their resets (default: all). Returns observations [M, ...]."""
        if not self.replayable:
            raise EnvironmentError(
                "the episodes of a vector environment cannot be brought back: give a callable that "
                "makes one environment"
            )
        real = [self.action_map.to_real(np.asarray(past)) for past in actions]
        until = np.full(self.num_envs, self.changes.total) if until is None else until
        return self.begin_episodes(np.asarray(episodes), real, until)

    def change(self, kind: str, name: str, value: Any) -> None:
        """Record a change of all environments; each applies it at its next reset."""
        self.inspect(kind, name)
        self.changes.add(kind, name, value, self.applied)
        self.use_changes(self.changes)

    @abc.abstractmethod
    def inspect(self, kind: str, name: str) -> list[Any]:
        """Check that all environments have an attribute or a method; return the values if `kind`
        asks for them."""

    @abc.abstractmethod
    def use_changes(self, changes: EnvChanges) -> None:
        """Apply these changes at resets, those that a row does not have yet."""

    @abc.abstractmethod
    def step(self, action: np.ndarray, only: np.ndarray | None = None) -> HostStep:
        """Step all environments; those whose episode ended are reset, seeded, at once.

        `only` [M] bool marks those to step. The others stay as they are: no transition, no
        reward, no end, and their actions do not matter. (If their worker process is lost they are
        cut like its other rows.)
        """

    def take_infos(self) -> dict[int, EpisodeInfo]:
        """Return what the episodes have reported that ended since the last call, by row. The caller
        of `step` takes it after each step."""
        if not self.infos:
            return {}
        taken, self.infos = self.infos, {}
        return taken

    def read_open_infos(self) -> dict[int, EpisodeInfo]:
        """Return what the open episodes have reported so far, by row."""
        return {}

    def record(self, report: Report | None) -> list[int]:
        """Take in a report; returns the rows whose open episodes were cut."""
        if report is None:
            return []
        self.infos |= report.infos
        return self.fault_counter.record(report.faults)

    def divide(self, multiple: int) -> list[slice]:
        """Return the rows of the parts that `send` and `receive` step concurrently, each with a
        multiple of that many rows. One part, where nothing would be gained."""
        return [self.all_rows]

    def send(self, action: np.ndarray, part: int = 0) -> None:
        """Begin a step of one part; `action` holds its rows."""
        self._sent = action

    def receive(self, part: int = 0) -> HostStep:
        """End the step of a part. All parts end a step before any begins the next one."""
        return self.step(self._sent)

    @abc.abstractmethod
    def close(self) -> None:
        """Release environments and processes. Safe to call twice."""

    @abc.abstractmethod
    def begin_episodes(
        self, episodes: np.ndarray, actions: Sequence[Any], until: np.ndarray
    ) -> np.ndarray:
        """Reset all environments to these episodes, after the changes up to number `until` [M],
        then take real actions, if any. Returns fresh observations."""

    def _make_layout(self, descriptor: Descriptor | None) -> np.dtype:
        """Return the layout of `StepArrays` for these environments."""
        rows, packer, action = self.num_envs, self.packer, self.spec.action
        action_dtype = np.float32 if isinstance(action, Continuous) else np.int64
        fields: list[tuple[str, Any, tuple[int, ...]]] = [
            ("action", action_dtype, (rows, *getattr(action, "shape", ()))),
            ("chosen", np.bool_, (rows,)),
            ("reward", np.float32, (rows,)),
            ("terminated", np.bool_, (rows,)),
            ("last", np.bool_, (rows,)),
            ("next_observation", packer.dtype, (rows, *packer.shape)),
            ("observation", packer.dtype, (rows, *packer.shape)),
        ]
        if descriptor is not None:
            fields.append(("descriptor", np.float32, (rows, descriptor.size)))
        return np.dtype(fields, align=True)

    def mask_actions(self, action: np.ndarray, only: np.ndarray) -> np.ndarray:
        """Check `only`; returns the actions with zeros in the rows that are left out."""
        if only.shape != (self.num_envs,) or only.dtype != np.bool_:
            raise EnvironmentError(
                f"only must be {self.num_envs} bools, one for each environment, got {only.dtype} "
                f"of shape {only.shape}"
            )
        action = action.copy()
        action[~only] = 0
        return action

    def read_first_observations(
        self, arrays: StepArrays, episodes: np.ndarray, until: np.ndarray
    ) -> np.ndarray:
        """Return the first observations of these episodes, which were written into `arrays`."""
        self.episodes[:], self.applied[:] = episodes, until
        self.fault_counter.episodes += self.num_envs
        self._acted_on[...] = arrays.observation
        return self._acted_on.copy()

    def read_step(
        self, arrays: StepArrays, rows: slice, cut: list[int], only: np.ndarray | None = None
    ) -> HostStep:
        """Return what was written into `arrays`, which are those of `rows`; the episodes of the
        rows in `cut` were cut."""
        valid = self._all_valid[rows] if only is None else only.copy()
        last = arrays.last.copy()
        following = arrays.next_observation.copy()
        if only is not None:
            following[~only] = self._acted_on[~only]
        observation = following
        if True in last.tolist():  # several times faster than `.any()` on a few flags
            self.episodes[rows] += last
            self.applied[rows][last] = self.changes.total
            self.fault_counter.episodes += int(last.sum())
            observation = following.copy()
            observation[last] = arrays.observation[last]
        if cut:  # the next observation becomes the last good one, which was acted on
            places = [row - rows.start for row in cut]
            valid = valid.copy()
            valid[places] = False
            following[places] = self._acted_on[cut]
        self._acted_on[rows] = observation
        reward, terminated = arrays.reward.copy(), arrays.terminated.copy()
        descriptor = None if arrays.descriptor is None else arrays.descriptor.copy()
        return HostStep(reward, terminated, last, following, observation, valid, descriptor)


class NativeStep(NamedTuple):
    """What a native environment reports after one step."""

    state: Any
    observation: Shaped[Array, "..."]
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


def report_step(
    env: Any, state: Any, reward: Array, terminated: Array | bool = False
) -> NativeStep:
    """Report a step that led to `state`; it is truncated at the time limit.

    `env` has `observe(state)` and `max_steps`, and `state.steps` counts the steps of the episode.
    """
    truncated = state.steps >= env.max_steps
    return NativeStep(state, env.observe(state), reward, jnp.asarray(terminated), truncated)


class NativeEnv(abc.ABC):
    """An environment of pure functions: jittable, vmappable, never resetting itself.

    `state` is a pytree of arrays that also holds the step counter, so that the environment itself
    applies its time limit and reports it as `truncated`.
    """

    @property
    @abc.abstractmethod
    def spec(self) -> Spec: ...

    @property
    @abc.abstractmethod
    def max_steps(self) -> int:
        """No episode is longer than this."""

    @abc.abstractmethod
    def reset(self, key: Key) -> tuple[Any, Shaped[Array, "..."]]:
        """Begin an episode: state and first observation."""

    @abc.abstractmethod
    def step(self, state: Any, action: Array, key: Key) -> NativeStep:
        """Take one step. Continuous actions are in the environment's real units."""

    @property
    def shareable(self) -> bool:
        """Whether agents may share programs compiled for this environment: it cannot change."""
        return type(self).__module__.startswith("understudy.")

    @property
    def descriptors(self) -> dict[str, Descriptor]:
        """The descriptors of behavior that this environment offers, the default first."""
        return {}
