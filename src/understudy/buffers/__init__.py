"""Buffers store the steps of collectors until they are learned from."""

from understudy.buffers.base import Buffer as Buffer
from understudy.buffers.base import Priorities as Priorities
from understudy.buffers.frame_replay import FrameReplayBuffer as FrameReplayBuffer
from understudy.buffers.host_replay import HostReplayBuffer as HostReplayBuffer
from understudy.buffers.remote_replay import RemoteReplayBuffer as RemoteReplayBuffer
from understudy.buffers.replay import ReplayBuffer as ReplayBuffer
from understudy.buffers.replay import ReplayState as ReplayState
from understudy.buffers.rollout import RolloutBuffer as RolloutBuffer
