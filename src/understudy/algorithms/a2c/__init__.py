"""Advantage Actor-Critic, synchronous (Mnih et al., 2016)."""

from understudy.algorithms.a2c.a2c import A2C
from understudy.algorithms.a2c.config import A2CConfig
from understudy.algorithms.base import ActorPolicy as Policy

ALGORITHM = A2C

__all__ = ["A2C", "ALGORITHM", "A2CConfig", "Policy"]
