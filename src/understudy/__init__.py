"""Understudy: actor-critic reinforcement learning in JAX.

The import is lazy: a name is imported when it is first used, so that the worker processes of
environments never load JAX.
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
# Module -> the public names that it defines.
_MODULES = {
    "agent": ("Agent", "load"),
    "agent.agents": ("A2C", "DDPG", "DDQN", "MPO", "SAC", "TD3"),
    "agent.illumination": ("MAPElites", "PGAME"),
    "agent.repertoire": ("Repertoire",),
    "algorithms.a2c": ("A2CConfig",),
    "algorithms.aux_losses": ("action_penalty", "kl_to_reference"),
    "algorithms.ddpg": ("DDPGConfig",),
    "algorithms.ddqn": ("DDQNConfig",),
    "algorithms.mpo": ("MPOConfig",),
    "algorithms.sac": ("SACConfig",),
    "algorithms.td3": ("TD3Config",),
    "distributed.config": ("Cluster",),
    "envs.descriptors": ("Descriptor",),
    "envs.fault_guard": ("Guard",),
    "networks": ("Networks",),
    "ops.schedules": ("constant", "cosine", "exponential", "linear", "piecewise"),
    "qd.config": ("MAPElitesConfig", "PGAMEConfig"),
    "runs.config": ("QDRunConfig", "RunConfig"),
    "types": ("UnderstudyError",),
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module 'understudy' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
