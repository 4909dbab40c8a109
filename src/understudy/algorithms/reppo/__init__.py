"""Relative Entropy Pathwise Policy Optimization (Voelcker et al., 2025)."""

from understudy.algorithms.base import ActorPolicy as Policy
from understudy.algorithms.reppo.config import REPPOConfig
from understudy.algorithms.reppo.reppo import REPPO

ALGORITHM = REPPO

__all__ = ["ALGORITHM", "REPPO", "Policy", "REPPOConfig"]
