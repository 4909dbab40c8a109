"""Containers of experience: the replay ring, the film for images and sequences, and the rollout.
Facts go in, batches come out."""

from understudy.experience import film, host_film, ring, rollout
from understudy.experience.film import Film
from understudy.experience.host_film import HostFilm
from understudy.experience.ring import Ring
from understudy.experience.rollout import Rollout

__all__ = ["Film", "HostFilm", "Ring", "Rollout", "film", "host_film", "ring", "rollout"]
