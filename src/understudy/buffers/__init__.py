"""Buffers store the steps of collectors until they are learned from."""

from understudy.buffers.base import Buffer, Priorities
from understudy.buffers.frame_replay import FrameReplayBuffer, FrameReplayState
from understudy.buffers.host_replay import HostReplayBuffer
from understudy.buffers.remote_replay import RemoteReplayBuffer
from understudy.buffers.replay import ReplayBuffer, ReplayState
from understudy.buffers.rollout import RolloutBuffer, RolloutState

__all__ = [
    "Buffer",
    "FrameReplayBuffer",
    "FrameReplayState",
    "HostReplayBuffer",
    "Priorities",
    "RemoteReplayBuffer",
    "ReplayBuffer",
    "ReplayState",
    "RolloutBuffer",
    "RolloutState",
]
