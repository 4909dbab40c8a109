"""The two shapes an environment can take inside the library.

*Host* environments (Gymnasium) step on the CPU, many at a time: `HostEnvs`. *Native* ones are
pure functions that live on the accelerator: `NativeEnv`. Both report what happened and never
reset by themselves behind the engine's back.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from understudy.envs.descriptors import Descriptor
from understudy.envs.spaces import ActionMap
from understudy.types import Action, EnvironmentError, Joint, Key, Spec


class HostStep(NamedTuple):
    """What M environments report after one step.

    Arrays are fresh each time, but two of them may be the same object: where no episode ended,
    `observation` may be `next_observation`.

    A row that is not `valid` but `last` was *cut*: its environment failed, so that the open
    episode ended with the step before, truncated, and the next one has begun.
    """

    reward: np.ndarray  # [M] float32, raw
    terminated: np.ndarray  # [M] bool
    last: np.ndarray  # [M] bool: terminated or truncated
    next_observation: np.ndarray  # [M, ...]: the true next observation, also at an episode's end
    observation: np.ndarray  # [M, ...]: what to act on now (the reset one where `last`)
    valid: np.ndarray  # [M] bool: False where this row is no transition (reset only, cut, left)
    descriptor: np.ndarray | None = None  # [M, size] float32, if asked for; NaN where there is none


class HostEnvs(abc.ABC):
    """M Gymnasium environments stepped together.

    Actions arrive normalized (continuous: float32 [M, size] in [-1, 1]; discrete: int [M]) and
    are mapped to the real space here, at the border. Every reset is seeded: environment `i`
    starts its episode number `e` with `seeds(i, e)`.
    """

    spec: Spec
    num_envs: int
    replayable: ClassVar[bool]
    """Whether `replay` can bring open episodes back."""
    steps_rows: ClassVar[bool] = True
    """Whether `step` can leave some environments out."""
    faults: dict[str, int]
    """How often what was survived, since the beginning."""
    _action_map: ActionMap

    def set_action_space(self, action: Action) -> None:
        """Take actions in this form from now on: the environments' own, or a `Joint` of it."""
        own, wanted = (
            form.of if isinstance(form, Joint) else form for form in (self.spec.action, action)
        )
        if own != wanted:
            raise EnvironmentError(f"the environments take {own} as actions, not {action}")
        self.spec, self._action_map = Spec(self.spec.observation, action), ActionMap(action)

    @property
    @abc.abstractmethod
    def episodes(self) -> np.ndarray:
        """[M] the number of each environment's open episode; -1 before the first reset."""

    @abc.abstractmethod
    def reset(self) -> np.ndarray:
        """Start the next episode everywhere; returns observations [M, ...]."""

    @abc.abstractmethod
    def restart(self) -> np.ndarray:
        """Go back to everyone's episode number 0: the same episodes each time this is called."""

    @abc.abstractmethod
    def step(self, action: np.ndarray, only: np.ndarray | None = None) -> HostStep:
        """Step all environments; those whose episode ended are reset, seeded, at once.

        `only` [M] bool marks those to step. The others are left where they are: no transition, no
        reward, no end, and their actions do not matter. (If their worker process is lost they are
        cut like its other rows.)
        """

    def divide(self, multiple: int) -> list[slice]:
        """The rows of parts that `send` and `receive` step beside one another, each with a multiple
        of that many rows. One part, where nothing would be gained."""
        return [slice(0, self.num_envs)]

    def send(self, action: np.ndarray, part: int = 0) -> None:
        """Begin a step of one part; `action` holds its rows."""
        self._sent = action

    def receive(self, part: int = 0) -> HostStep:
        """End the step of a part. All parts end a step before any begins the next one."""
        return self.step(self._sent)

    def _chosen(self, action: np.ndarray, only: np.ndarray) -> np.ndarray:
        """The actions, harmless where nobody takes them."""
        if only.shape != (self.num_envs,) or only.dtype != np.bool_:
            raise EnvironmentError(
                f"only must be {self.num_envs} bools, one for each environment, got {only.dtype} "
                f"of shape {only.shape}"
            )
        action = action.copy()
        action[~only] = 0
        return action

    @abc.abstractmethod
    def replay(self, episodes: np.ndarray, actions: Sequence[np.ndarray]) -> np.ndarray:
        """Return to the middle of open episodes: `episodes` [M] are their numbers, `actions[i]`
        [steps, ...] what was done (normalized) since their resets. Gives observations [M, ...]."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release environments and processes. Safe to call twice."""


class NativeStep(NamedTuple):
    """What a native environment reports after one step."""

    state: Any
    observation: Shaped[Array, "..."]
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


class NativeEnv(abc.ABC):
    """An environment of pure functions: jittable, vmappable, never resetting itself.

    `state` is a pytree of arrays that also holds the step counter, so that the time limit is
    the environment's own and is reported as `truncated`.
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
        """By what behaviors here can be told apart, the usual one first."""
        return {}
