"""Proximal Policy Optimization (Schulman et al., 2017)."""

from understudy.algorithms.base import ActorPolicy as Policy
from understudy.algorithms.ppo.config import PPOConfig
from understudy.algorithms.ppo.ppo import PPO

ALGORITHM = PPO

__all__ = ["ALGORITHM", "PPO", "PPOConfig", "Policy"]
