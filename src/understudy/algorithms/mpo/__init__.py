"""Maximum a Posteriori Policy Optimisation (Abdolmaleki et al., 2018)."""

from understudy.algorithms.mpo.config import MPOConfig
from understudy.algorithms.mpo.learner import MPO, Policy, State

ALGORITHM = MPO

__all__ = ["ALGORITHM", "MPO", "MPOConfig", "Policy", "State"]
