"""Soft Actor-Critic (Haarnoja et al., 2018)."""

from understudy.algorithms.base import ActorPolicy as Policy
from understudy.algorithms.sac.config import SACConfig
from understudy.algorithms.sac.sac import SAC

ALGORITHM = SAC

__all__ = ["ALGORITHM", "SAC", "Policy", "SACConfig"]
