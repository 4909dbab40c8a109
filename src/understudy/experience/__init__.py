"""Containers of experience: the replay ring, the film for images and sequences, and the rollout.
Facts go in, batches come out."""

from understudy.experience import film, ring, rollout
from understudy.experience.film import Film
from understudy.experience.ring import Ring
from understudy.experience.rollout import Rollout

__all__ = ["Film", "Ring", "Rollout", "film", "ring", "rollout"]
