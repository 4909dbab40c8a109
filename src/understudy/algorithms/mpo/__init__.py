"""Maximum a Posteriori Policy Optimization (Abdolmaleki et al., 2018)."""

from understudy.algorithms.mpo.config import MPOConfig
from understudy.algorithms.mpo.mpo import MPO, Policy

ALGORITHM = MPO

__all__ = ["ALGORITHM", "MPO", "MPOConfig", "Policy"]
