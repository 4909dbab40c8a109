"""Understudy: actor-critic reinforcement learning in JAX.

The import is lazy: a name is imported when it is first used, so that the worker processes of
environments never load JAX.
"""

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from understudy.agent import Agent as Agent
    from understudy.agent import load as load
    from understudy.agent.agents import A2C as A2C
    from understudy.agent.agents import DDPG as DDPG
    from understudy.agent.agents import DDQN as DDQN
    from understudy.agent.agents import MPO as MPO
    from understudy.agent.agents import PPO as PPO
    from understudy.agent.agents import PQN as PQN
    from understudy.agent.agents import REPPO as REPPO
    from understudy.agent.agents import SAC as SAC
    from understudy.agent.agents import TD3 as TD3
    from understudy.agent.illumination import PGAME as PGAME
    from understudy.agent.illumination import MAPElites as MAPElites
    from understudy.agent.repertoire import Repertoire as Repertoire
    from understudy.algorithms.a2c import A2CConfig as A2CConfig
    from understudy.algorithms.aux_losses import action_penalty as action_penalty
    from understudy.algorithms.aux_losses import kl_to_reference as kl_to_reference
    from understudy.algorithms.ddpg import DDPGConfig as DDPGConfig
    from understudy.algorithms.ddqn import DDQNConfig as DDQNConfig
    from understudy.algorithms.mpo import MPOConfig as MPOConfig
    from understudy.algorithms.ppo import PPOConfig as PPOConfig
    from understudy.algorithms.pqn import PQNConfig as PQNConfig
    from understudy.algorithms.reppo import REPPOConfig as REPPOConfig
    from understudy.algorithms.sac import SACConfig as SACConfig
    from understudy.algorithms.td3 import TD3Config as TD3Config
    from understudy.distributed.config import Cluster as Cluster
    from understudy.envs.descriptors import Descriptor as Descriptor
    from understudy.envs.fault_guard import Guard as Guard
    from understudy.errors import UnderstudyError as UnderstudyError
    from understudy.networks import Networks as Networks
    from understudy.ops.schedules import constant as constant
    from understudy.ops.schedules import cosine as cosine
    from understudy.ops.schedules import exponential as exponential
    from understudy.ops.schedules import linear as linear
    from understudy.ops.schedules import piecewise as piecewise
    from understudy.qd.config import MAPElitesConfig as MAPElitesConfig
    from understudy.qd.config import PGAMEConfig as PGAMEConfig
    from understudy.runs.callbacks import Callback as Callback
    from understudy.runs.config import QDRunConfig as QDRunConfig
    from understudy.runs.config import RunConfig as RunConfig

_PACKAGES = (
    "algorithms", "buffers", "callbacks", "distributed", "envs", "networks", "ops", "qd", "runner",
    "runs", "sweep", "training",
)  # fmt: skip
# Module -> the public names that it defines.
_MODULES = {
    "agent": ("Agent", "load"),
    "agent.agents": ("A2C", "DDPG", "DDQN", "MPO", "PPO", "PQN", "REPPO", "SAC", "TD3"),
    "agent.illumination": ("MAPElites", "PGAME"),
    "agent.repertoire": ("Repertoire",),
    "algorithms.a2c": ("A2CConfig",),
    "algorithms.aux_losses": ("action_penalty", "kl_to_reference"),
    "algorithms.ddpg": ("DDPGConfig",),
    "algorithms.ddqn": ("DDQNConfig",),
    "algorithms.mpo": ("MPOConfig",),
    "algorithms.ppo": ("PPOConfig",),
    "algorithms.pqn": ("PQNConfig",),
    "algorithms.reppo": ("REPPOConfig",),
    "algorithms.sac": ("SACConfig",),
    "algorithms.td3": ("TD3Config",),
    "distributed.config": ("Cluster",),
    "envs.descriptors": ("Descriptor",),
    "envs.fault_guard": ("Guard",),
    "errors": ("UnderstudyError",),
    "networks": ("Networks",),
    "ops.schedules": ("constant", "cosine", "exponential", "linear", "piecewise"),
    "qd.config": ("MAPElitesConfig", "PGAMEConfig"),
    "runs.callbacks": ("Callback",),
    "runs.config": ("QDRunConfig", "RunConfig"),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # type checkers read the imports above instead
    __all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PACKAGES and name not in _PLACES:
        raise _missing(name)
    place = f"{__name__}.{_PLACES.get(name, name)}"
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if not f"{place}.".startswith(f"{error.name}."):  # a dependency is missing
            raise
        raise ImportError(
            f"us.{name} is not in understudy-player, which only plays policies: to train, "
            "pip uninstall understudy-player, then pip install understudy"
        ) from None
    return module if name in _PACKAGES else getattr(module, name)


def _missing(name: str) -> Exception:
    """Return the error for a name that the package does not have."""
    with contextlib.suppress(ModuleNotFoundError):  # understudy-player has no table of names
        from understudy.aliases import ALIASES, explain

        if name in ALIASES:  # `from understudy import DQN` shows an ImportError, too
            return ImportError(explain(name, _PLACES, "us.{}".format))
    return AttributeError(f"module 'understudy' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(_PLACES)
