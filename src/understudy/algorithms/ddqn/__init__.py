"""Double deep Q-learning (van Hasselt et al., 2015)."""

from understudy.algorithms.ddqn.config import DDQNConfig
from understudy.algorithms.ddqn.ddqn import DDQN, Policy

ALGORITHM = DDQN

__all__ = ["ALGORITHM", "DDQN", "DDQNConfig", "Policy"]
