"""Containers of experience: the replay ring, the film for images and sequences, and the rollout.
Facts go in, batches come out."""

from understudy.buffers import frame_replay as film
from understudy.buffers import host_replay as host_film
from understudy.buffers import replay as ring
from understudy.buffers import rollout
from understudy.buffers.frame_replay import Film
from understudy.buffers.host_replay import HostFilm
from understudy.buffers.replay import Ring
from understudy.buffers.rollout import Rollout

__all__ = ["Film", "HostFilm", "Ring", "Rollout", "film", "host_film", "ring", "rollout"]
