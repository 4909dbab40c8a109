"""Parallelized Q-network (Gallici et al., 2024)."""

from understudy.algorithms.pqn.config import PQNConfig
from understudy.algorithms.pqn.pqn import PQN, Policy

ALGORITHM = PQN

__all__ = ["ALGORITHM", "PQN", "PQNConfig", "Policy"]
