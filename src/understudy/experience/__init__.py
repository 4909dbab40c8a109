"""Containers of experience: the replay ring and the rollout. Facts go in, batches come out."""

from understudy.experience import ring, rollout
from understudy.experience.ring import Ring
from understudy.experience.rollout import Rollout

__all__ = ["Ring", "Rollout", "ring", "rollout"]
