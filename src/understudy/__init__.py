"""Understudy: actor-critic reinforcement learning on one JAX engine.

Importing this package imports nothing heavy: names are looked up when they are first used, so
that an environment's worker process never loads JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from understudy.agent import Agent, load
    from understudy.agent.agents import A2C, DDPG, DDQN, MPO, SAC, TD3
    from understudy.agent.illumination import PGAME, MAPElites
    from understudy.agent.repertoire import Repertoire
    from understudy.algorithms.a2c import A2CConfig
    from understudy.algorithms.aux_losses import action_penalty, kl_to_reference
    from understudy.algorithms.ddpg import DDPGConfig
    from understudy.algorithms.ddqn import DDQNConfig
    from understudy.algorithms.mpo import MPOConfig
    from understudy.algorithms.sac import SACConfig
    from understudy.algorithms.td3 import TD3Config
    from understudy.distributed.config import Cluster
    from understudy.envs.descriptors import Descriptor
    from understudy.envs.fault_guard import Guard
    from understudy.networks import Networks
    from understudy.ops.schedules import constant, cosine, exponential, linear, piecewise
    from understudy.qd.config import MAPElitesConfig, PGAMEConfig
    from understudy.runs.config import QDRunConfig, RunConfig
    from understudy.types import UnderstudyError

__all__ = [
    "A2C",
    "DDPG",
    "DDQN",
    "MPO",
    "PGAME",
    "SAC",
    "TD3",
    "A2CConfig",
    "Agent",
    "Cluster",
    "DDPGConfig",
    "DDQNConfig",
    "Descriptor",
    "Guard",
    "MAPElites",
    "MAPElitesConfig",
    "MPOConfig",
    "Networks",
    "PGAMEConfig",
    "QDRunConfig",
    "Repertoire",
    "RunConfig",
    "SACConfig",
    "TD3Config",
    "UnderstudyError",
    "action_penalty",
    "constant",
    "cosine",
    "exponential",
    "kl_to_reference",
    "linear",
    "load",
    "piecewise",
]

_PACKAGES = (
    "algorithms", "buffers", "distributed", "envs", "networks", "ops", "qd", "runner", "runs",
    "sweep", "training",
)  # fmt: skip
_HOME = {
    **dict.fromkeys(("A2C", "DDPG", "DDQN", "MPO", "SAC", "TD3"), "agent.agents"),
    "A2CConfig": "algorithms.a2c",
    "DDPGConfig": "algorithms.ddpg",
    "DDQNConfig": "algorithms.ddqn",
    "MPOConfig": "algorithms.mpo",
    "SACConfig": "algorithms.sac",
    "TD3Config": "algorithms.td3",
    "Agent": "agent",
    "Cluster": "distributed.config",
    "Descriptor": "envs.descriptors",
    "Guard": "envs.fault_guard",
    "MAPElites": "agent.illumination",
    "MAPElitesConfig": "qd.config",
    "PGAME": "agent.illumination",
    "PGAMEConfig": "qd.config",
    "QDRunConfig": "runs.config",
    "Repertoire": "agent.repertoire",
    "load": "agent",
    "Networks": "networks",
    "RunConfig": "runs.config",
    "UnderstudyError": "types",
    "action_penalty": "algorithms.aux_losses",
    "kl_to_reference": "algorithms.aux_losses",
    "constant": "ops.schedules",
    "cosine": "ops.schedules",
    "exponential": "ops.schedules",
    "linear": "ops.schedules",
    "piecewise": "ops.schedules",
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module 'understudy' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
