"""Deterministic evaluation on environments of its own, every episode counted exactly once.

Each member plays the same number of episodes, one per environment, all begun together with fixed
seeds. No episode is left out, so short ones weigh no more than long ones; none is cut off, unless
it goes on for ever.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, final

import jax
import numpy as np

from understudy.engine.members import EVALUATION, member_keys
from understudy.engine.playing import HostStage, NativeStage, Played
from understudy.engine.programs import shared
from understudy.engine.trainer import Setting
from understudy.envs.base import HostEnvs, NativeEnv
from understudy.envs.describing import Descriptor


class Evaluation(NamedTuple):
    """What became of every member's episodes."""

    returns: np.ndarray  # [members, episodes]
    descriptors: np.ndarray | None  # [members, episodes, size], where behaviours are described


@final
class HostEvaluator:
    """Plays episodes on Gymnasium environments."""

    def __init__(
        self,
        setting: Setting,
        envs: HostEnvs,
        episodes: int,
        descriptor: Descriptor | None = None,
        limited: bool = True,
    ):
        shape = self._shape = (setting.num_seeds, episodes)
        self._stage = HostStage(setting.algorithm, envs, *shape, descriptor, limited=limited)

    def play(self, policy: Any) -> Evaluation:
        return _evaluation(self._stage.play(policy, self._stage.envs.restart()), self._shape)

    def close(self) -> None:
        self._stage.envs.close()


@final
class NativeEvaluator:
    """Plays episodes on native environments, all on the device."""

    def __init__(
        self, setting: Setting, env: NativeEnv, episodes: int, descriptor: Descriptor | None = None
    ):
        self._shape = (setting.num_seeds, episodes)
        self._play = _native_program(setting.unseeded, env, episodes, descriptor)
        self._keys = member_keys(setting.seed, setting.num_seeds, EVALUATION)

    def play(self, policy: Any) -> Evaluation:
        return _evaluation(self._play(policy, self._keys), self._shape)

    def close(self) -> None:
        """Nothing is held outside the device's memory."""


@shared
def _native_program(
    setting: Setting, env: NativeEnv, episodes: int, descriptor: Descriptor | None
) -> Callable[[Any, Any], Played]:
    members = setting.num_seeds
    stage = NativeStage(setting.algorithm, env, setting.spec, members, episodes, descriptor)
    return jax.jit(lambda policy, keys: stage.play(policy, keys)[0])


def _evaluation(played: Played, shape: tuple[int, int]) -> Evaluation:
    returns = np.asarray(played.total, np.float64).reshape(shape)
    if played.descriptor is None:
        return Evaluation(returns, None)
    described = np.asarray(played.descriptor)
    return Evaluation(returns, described.reshape(*shape, described.shape[-1]))
