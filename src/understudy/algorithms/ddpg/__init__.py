"""Deep Deterministic Policy Gradient (Lillicrap et al., 2015)."""

from understudy.algorithms.ddpg.config import DDPGConfig
from understudy.algorithms.ddpg.ddpg import DDPG, Policy

ALGORITHM = DDPG

__all__ = ["ALGORITHM", "DDPG", "DDPGConfig", "Policy"]
