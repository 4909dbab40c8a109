"""Environments that run on the accelerator, under Gymnasium's ids.

The four classics equal Gymnasium's step by step, time limit included, so results can be compared;
`MinAtar-Breakout-v1` equals MinAtar's. The -P versions of classics show positions only. Our own are
`PointNavigation-v0`, a minimal task in which following the reward greedily fails and a repertoire
of behaviors helps, and `Recall-v0`, a minimal task that needs memory.
"""

from collections.abc import Callable
from functools import partial

from understudy.envs.base import NativeEnv
from understudy.envs.native.classic_control import (
    Acrobot,
    CartPole,
    MountainCarContinuous,
    Pendulum,
)
from understudy.envs.native.minatar_breakout import MinAtarBreakout
from understudy.envs.native.own_tasks import PointNavigation, Recall
from understudy.envs.native.wrappers import Hidden

NATIVE: dict[str, Callable[[], NativeEnv]] = {
    "Pendulum-v1": Pendulum,
    "CartPole-v1": CartPole,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Acrobot-v1": Acrobot,
    "PointNavigation-v0": PointNavigation,
    "MinAtar-Breakout-v1": MinAtarBreakout,
    "Pendulum-P-v1": partial(Hidden, Pendulum(), keep=(0, 1)),
    "CartPole-P-v1": partial(Hidden, CartPole(), keep=(0, 2)),
    "Recall-v0": Recall,
}
