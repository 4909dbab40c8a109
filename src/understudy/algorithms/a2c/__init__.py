"""Advantage Actor-Critic, synchronous (Mnih et al., 2016)."""

from understudy.algorithms.a2c.config import A2CConfig
from understudy.algorithms.a2c.learner import A2C, Policy, State

ALGORITHM = A2C

__all__ = ["A2C", "ALGORITHM", "A2CConfig", "Policy", "State"]
