"""From an algorithm's name, or from a checkpoint, to an agent."""

from pathlib import Path
from typing import Any

from understudy.agent.agent import Agent
from understudy.agent.agents import agent_class
from understudy.agent.manifest import read
from understudy.algorithms.base import LossAddon
from understudy.distributed.config import Cluster
from understudy.envs.make import resolve, without_environment
from understudy.envs.names import refuse_foreign_module
from understudy.networks import Networks
from understudy.ops.schedules import Schedule
from understudy.runs.handed import Handed
from understudy.training.snapshot import Snapshot
from understudy.types import CheckpointError, EnvironmentError, Spec


def load(
    path: str | Path,
    *,
    env: Any = None,
    networks: Networks | None = None,
    loss_addons: tuple[LossAddon, ...] = (),
    schedules: dict[str, Schedule] | None = None,
    refill: bool = False,
    cluster: Cluster | None = None,
    trust_environment: bool = False,
    device: str | None = None,
) -> Agent:
    """Restore an agent from a checkpoint, or from the newest good one of a run directory.

    What cannot be stored is handed in again: `env` (if it was no id; without one the agent can
    only act), `networks`, `loss_addons`, `schedules` that are functions of your own, and the
    `cluster` of a run that had joined one by its address.

    Loading runs no code of the checkpoint's choice: an environment "module:Id" is made only where
    that module is imported already, or with `trust_environment`.

    Training goes on bit for bit where the checkpoint holds the experience. One that does not
    (`best`) trains on only with `refill`, which collects anew before it learns.
    """
    handed = Handed(env, networks, loss_addons, schedules or {}, cluster, trust_environment)
    return load_agent(path, handed, refill, device)


def load_agent(
    path: str | Path,
    handed: Handed,
    refill: bool = False,
    device: str | None = None,
    cls: type[Agent] | None = None,
) -> Agent:
    """The agent at `path`; refuses one of another algorithm than the class's, if one is given."""
    if cls is None:
        stored, manifest = read(path)
    else:
        algorithm = cls.algorithm_class
        stored, manifest = read(path, algorithm.name, algorithm.config_class)
    about, spec = manifest.about, manifest.spec
    handed.check(stored.place, about)
    agent = (cls or agent_class(about["algorithm"]))(
        _environment(about, handed, spec),
        manifest.config,
        seed=about["seed"],
        num_seeds=about["num_seeds"],
        num_envs=about["num_envs"],
        networks=handed.networks,
        loss_addons=handed.loss_addons,
        env_workers=about["env_workers"],
        guard=manifest.guard,
        cluster=choose_cluster(stored.place, manifest.cluster, handed.cluster),
        device=device,
    )
    if agent.spec != spec:
        raise CheckpointError(
            f"{stored.place} was trained on another environment: it expects {spec}, this one has "
            f"{agent.spec}"
        )
    groups = stored.groups
    snapshot = Snapshot(manifest.position, groups["learner"], groups.get("world"))
    agent.env_name = about["env"] if handed.env is None else agent.env_name
    schedules = {name: curve for name, curve in manifest.schedules.items() if curve is not None}
    agent.adopt(snapshot, about, schedules | handed.schedules, refill)
    return agent


def choose_cluster(path: Path, stored: Cluster | None, given: Cluster | None) -> Cluster | None:
    """The one that is given, or the one that a run had; but whom to connect to is never decided by
    a file."""
    if given is None and stored is not None and stored.address is not None:
        raise CheckpointError(
            f"{path} ran on the Ray at {stored.address!r}, which a file alone must not decide: "
            "give cluster=us.Cluster(…, address=…) to go on there (--address), or us.Cluster() to "
            "use it here"
        )
    return stored if given is None else given


def _environment(about: dict[str, Any], handed: Handed, spec: Spec) -> Any:
    if handed.env is not None:
        return handed.env
    if about["env"] is None:
        return without_environment(spec, "give us.load(…) its env (--env module:Class)")
    if not handed.trust_environment:
        refuse_foreign_module(about["env"])
    try:
        return resolve(about["env"], about["num_envs"])
    except EnvironmentError as error:
        return without_environment(spec, str(error))
