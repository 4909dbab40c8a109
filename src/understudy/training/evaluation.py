"""Evaluation on environments of its own, every episode counted exactly once.

Each seed plays the same number of episodes, one per environment, all begun together with fixed
seeds. No episode is left out, so short ones weigh no more than long ones; none is cut off, unless
it goes on for ever.

The evaluations of a training select the best policy. All others play episodes with seeds of their
own, so that what they measure was not selected for.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, final

import jax
import numpy as np

from understudy.envs.base import HostEnvs, NativeEnv
from understudy.envs.descriptors import Descriptor
from understudy.training.episode_runner import (
    DETERMINISTIC,
    HostEpisodeRunner,
    Mode,
    NativeEpisodeRunner,
    Played,
)
from understudy.training.program_cache import shared
from understudy.training.seed_axis import EVALUATION, SELECTION, seed_keys
from understudy.training.trainer import Setting
from understudy.types import Key


@final
@dataclasses.dataclass(frozen=True)
class EvaluationPlan:
    """Which episodes are played, and how."""

    episodes: int  # of each seed
    descriptor: Descriptor | None = None
    seed: int | None = None  # of the first seed's episodes; None selects the best policy
    mode: Mode = DETERMINISTIC

    def keys(self, setting: Setting) -> Key:
        seed = setting.seed if self.seed is None else self.seed
        stream = SELECTION if self.seed is None else EVALUATION
        return seed_keys(seed, setting.num_seeds, stream)


class Evaluation(NamedTuple):
    """What became of every seed's episodes."""

    returns: np.ndarray  # [seeds, episodes]
    descriptors: np.ndarray | None  # [seeds, episodes, size], where behaviors are described


@final
class HostEvaluator:
    """Plays episodes on Gymnasium environments."""

    def __init__(
        self, setting: Setting, envs: HostEnvs, plan: EvaluationPlan, limited: bool = True
    ):
        shape = self._shape = (setting.num_seeds, plan.episodes)
        self._runner = HostEpisodeRunner(
            setting.algorithm,
            envs,
            shape,
            plan.descriptor,
            limited=limited,
            mode=plan.mode,
            keys=plan.keys(setting),
        )

    def play(self, policy: Any) -> Evaluation:
        return _evaluation(self._runner.play(policy, self._runner.envs.restart()), self._shape)

    def close(self) -> None:
        self._runner.envs.close()


@final
class NativeEvaluator:
    """Plays episodes on native environments, all on the device."""

    def __init__(self, setting: Setting, env: NativeEnv, plan: EvaluationPlan):
        self._shape = (setting.num_seeds, plan.episodes)
        unseeded = dataclasses.replace(plan, seed=None)
        self._play = _native_program(setting.unseeded, env, unseeded)
        self._keys = plan.keys(setting)

    def play(self, policy: Any) -> Evaluation:
        return _evaluation(self._play(policy, self._keys), self._shape)

    def close(self) -> None:
        """Nothing is held outside the device's memory."""


@shared
def _native_program(
    setting: Setting, env: NativeEnv, plan: EvaluationPlan
) -> Callable[[Any, Any], Played]:
    shape = (setting.num_seeds, plan.episodes)
    runner = NativeEpisodeRunner(
        setting.algorithm, env, setting.spec, shape, plan.descriptor, mode=plan.mode
    )
    return jax.jit(lambda policy, keys: runner.play(policy, keys)[0])


def _evaluation(played: Played, shape: tuple[int, int]) -> Evaluation:
    returns = np.asarray(played.total, np.float64).reshape(shape)
    if played.descriptor is None:
        return Evaluation(returns, None)
    described = np.asarray(played.descriptor)
    return Evaluation(returns, described.reshape(*shape, described.shape[-1]))
