"""From an algorithm's name, or from a checkpoint, to an agent."""

from functools import cache
from pathlib import Path
from typing import Any

from understudy.agent.face import Agent
from understudy.algorithms import Algorithm, find
from understudy.algorithms.base import LossAddon
from understudy.cluster.config import Cluster
from understudy.engine.snapshot import Position, Snapshot
from understudy.envs.guard import Guard
from understudy.envs.make import resolve, without_environment
from understudy.math.curves import Schedule
from understudy.nets import Networks
from understudy.runs import checkpoint
from understudy.runs.handed import Handed
from understudy.types import CheckpointError, EnvironmentError, Spec

# What is no agent, and which class loads it.
_QD = {"pga-me": "PGAME", "map-elites": "MAPElites"}


def agent_class(name: str) -> type[Agent]:
    """The final Agent class of an algorithm, by the algorithm's name in any case."""
    return _agent_class(find(name))


@cache
def _agent_class(algorithm: type[Algorithm]) -> type[Agent]:
    body = {"algorithm_class": algorithm, "__doc__": algorithm.__doc__}
    return type(algorithm.__name__, (Agent,), body)


def load(
    path: str | Path,
    *,
    env: Any = None,
    networks: Networks | None = None,
    loss_addons: tuple[LossAddon, ...] = (),
    schedules: dict[str, Schedule] | None = None,
    refill: bool = False,
    device: str | None = None,
) -> Agent:
    """Restore an agent from a checkpoint, or from the newest good one of a run directory.

    What cannot be stored is handed in again: `env` (if it was no id; without one the agent can
    only act), `networks`, `loss_addons`, `schedules` that are functions of your own.

    Training goes on bit for bit where the checkpoint holds the experience. One that does not
    (`best`) trains on only with `refill`, which collects anew before it learns.
    """
    stored = checkpoint.read_newest(path)
    method = stored.manifest.get("algorithm")
    if method in _QD:
        raise CheckpointError(
            f"{path} holds a repertoire: load it with us.{_QD[method]}.load, and select an agent"
        )
    handed = Handed(env, networks, loss_addons, schedules or {})
    return restore(stored, handed, refill, device)


def restore(stored: checkpoint.Stored, handed: Handed, refill: bool, device: str | None) -> Agent:
    about, path = stored.manifest, stored.place
    handed.check(path, about)
    cls = agent_class(about["algorithm"])
    spec = Spec.from_dict(about["spec"])
    agent = cls(
        _environment(about, handed, spec),
        cls.algorithm_class.config_class(**about["config"]),
        seed=about["seed"],
        num_seeds=about["num_seeds"],
        num_envs=about["num_envs"],
        networks=handed.networks,
        loss_addons=handed.loss_addons,
        env_workers=about["env_workers"],
        guard=Guard(**about["guard"]),
        cluster=Cluster(**about["cluster"]) if about.get("cluster") else None,
        device=device,
    )
    if agent.spec != spec:
        raise CheckpointError(
            f"{path} was trained on another environment: it expects {spec}, this one has "
            f"{agent.spec}"
        )
    snapshot = Snapshot(
        Position(**about["position"]), stored.groups["learner"], stored.groups.get("world")
    )
    agent.env_name = about["env"] if handed.env is None else agent.env_name
    agent.adopt(snapshot, about, handed.all_schedules(about), refill)
    return agent


def _environment(about: dict[str, Any], handed: Handed, spec: Spec) -> Any:
    if handed.env is not None:
        return handed.env
    if about["env"] is None:
        return without_environment(spec, "give us.load(…) its env")
    try:
        return resolve(about["env"], about["num_envs"])
    except EnvironmentError as error:
        return without_environment(spec, str(error))
