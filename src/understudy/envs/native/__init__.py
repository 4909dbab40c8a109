"""Environments that live on the accelerator, under the ids by which Gymnasium knows them.

The four classics equal Gymnasium's step by step, time limit included, so that a result here is a
result there. `PointNavigation-v0` is our own: the smallest world in which going straight for
the reward fails and a repertoire of behaviours helps.
"""

from collections.abc import Callable

from understudy.envs.base import NativeEnv
from understudy.envs.native.acrobot import Acrobot
from understudy.envs.native.cartpole import CartPole
from understudy.envs.native.mountain_car import MountainCarContinuous
from understudy.envs.native.pendulum import Pendulum
from understudy.envs.native.point_navigation import PointNavigation

NATIVE: dict[str, Callable[[], NativeEnv]] = {
    "Pendulum-v1": Pendulum,
    "CartPole-v1": CartPole,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Acrobot-v1": Acrobot,
    "PointNavigation-v0": PointNavigation,
}

__all__ = [
    "NATIVE",
    "Acrobot",
    "CartPole",
    "MountainCarContinuous",
    "Pendulum",
    "PointNavigation",
]
