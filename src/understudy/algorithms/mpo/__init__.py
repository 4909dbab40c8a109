"""Maximum a Posteriori Policy Optimization (Abdolmaleki et al., 2018)."""

from understudy.algorithms.base import ActorPolicy as Policy
from understudy.algorithms.mpo.config import MPOConfig
from understudy.algorithms.mpo.mpo import MPO

ALGORITHM = MPO

__all__ = ["ALGORITHM", "MPO", "MPOConfig", "Policy"]
