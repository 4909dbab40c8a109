"""Twin Delayed DDPG (Fujimoto et al., 2018)."""

from understudy.algorithms.td3.config import TD3Config
from understudy.algorithms.td3.td3 import TD3, Policy

ALGORITHM = TD3

__all__ = ["ALGORITHM", "TD3", "Policy", "TD3Config"]
