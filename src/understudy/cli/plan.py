"""What would run: flags over a file over the environment's preset over the defaults."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple, final

from understudy.algorithms import Algorithm, available
from understudy.algorithms.config import Config, nearest, setting
from understudy.distributed.config import Cluster
from understudy.errors import ConfigError
from understudy.runs.loggers import BY_NAME

DEFAULT_ALGORITHM, DEFAULT_ENVIRONMENT = "sac", "Pendulum-v1"
DEFAULT_STEPS, DEFAULT_STEPS_ELSEWHERE = 10_000, 1_000_000


@final
@dataclasses.dataclass(frozen=True)
class RunSettings(Config):
    """The keys of a file's [run] table, and flags of `understudy train`."""

    steps: int | None = setting(None, at_least=1)
    """Environment steps in all, per seed (default: 10,000 on Pendulum-v1, elsewhere 1,000,000)."""
    seed: int = setting(0, at_least=0)
    """The first seed."""
    seeds: int = setting(1, at_least=1)
    """Train that many seeds in one program."""
    envs: int | None = setting(None, at_least=1)
    """Environments per seed (default: the algorithm's own number)."""
    env_workers: int = setting(0, at_least=0)
    """Worker processes that step the environments; with 0 this process does."""
    step_timeout: float = setting(60.0, above=0.0, at_most=1e6)
    """Seconds a worker process has for one step, before it is replaced."""
    collectors: int = setting(0, at_least=0)
    """Processes on a Ray cluster that act and step environments, `envs` each and seed; with 0 this
    one does."""
    gradient_workers: int = setting(0, at_least=0)
    """Processes there that compute gradients of shares of every batch; with 0 this one does."""
    mode: str = setting("async", choices=("async", "sync"))
    """Whether collectors go on by themselves, or wait for each other (reproducible)."""
    gradient_mode: str = setting("sync", choices=("sync", "async"))
    """Whether the shares of a batch make one update, or every worker's batch one of its own."""
    address: str | None = setting(None)
    """The Ray cluster to join, auto or host:port (default: one is started here)."""
    devices: int = setting(1, at_least=1)
    """Accelerators over which the learner is spread."""
    log_every: int | None = setting(None, at_least=1)
    """Steps between rows of the log (default: 1,000, or 100 steps of all environments)."""
    evaluate_every: int | None = setting(None, at_least=0)
    """Steps between evaluations, 0 for the end only (default: a twentieth of the run, or more, so
    that evaluation takes at most a tenth of the run's steps in time)."""
    evaluation_episodes: int = setting(10, at_least=1)
    """Episodes per seed and evaluation."""
    checkpoint_every: int | None = setting(None, at_least=0)
    """Steps between checkpoints, 0 for the end only (default: every minute or so)."""
    keep_checkpoints: int = setting(2, at_least=1)
    """How many checkpoints are kept, beside the best."""
    logger: tuple[str, ...] = setting(())
    """Beside progress.csv: tensorboard, wandb, mlflow, or several, separated by commas."""
    device: str = setting("auto", choices=("auto", "cpu", "gpu"))
    """Where to compute; auto is JAX's choice."""

    def contradictions(self) -> list[str]:
        return unknown_loggers(self.logger)

    def cluster(self) -> Cluster | None:
        """None where one process on one device does it all."""
        names = ("collectors", "gradient_workers", "mode", "gradient_mode", "address", "devices")
        cluster = Cluster(**{name: getattr(self, name) for name in names})
        return cluster if cluster.remote or cluster.devices > 1 else None


def unknown_loggers(names: tuple[str, ...]) -> list[str]:
    return [
        f"unknown logger '{name}'{nearest(name, BY_NAME)}; there are: {', '.join(BY_NAME)}"
        for name in names
        if name not in BY_NAME
    ]


class Wishes(NamedTuple):
    """Settings that somebody asked for."""

    run: dict[str, Any]
    config: dict[str, Any]
    source: str  # as it is named in the output


class Kind(NamedTuple):
    """Whose settings are meant, and who else has a table of its own in a file."""

    name: str
    configs: Mapping[str, type[Config]]  # of all siblings, by name
    run_class: type[Config]  # what can be set about a run

    @property
    def config_class(self) -> type[Config]:
        return self.configs[self.name]


def kind_of(algorithm: type[Algorithm]) -> Kind:
    configs = {name: each.config_class for name, each in available().items()}
    return Kind(algorithm.name, configs, RunSettings)


class Settled(NamedTuple):
    run: Any
    config: Any
    preset: str  # what took part, in words


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """A run before it starts. Nothing is left to be chosen."""

    algorithm: type[Algorithm]
    env: str
    run: RunSettings
    config: Any
    preset: str


def make_plan(
    algorithm: type[Algorithm], env: str, layers: list[Wishes], problems: list[str]
) -> Plan:
    run, config, preset = settle(kind_of(algorithm), env, layers, problems)
    return Plan(algorithm, env, _completed(run, algorithm, env), config, preset)


def settle(kind: Kind, env: str, layers: list[Wishes], problems: list[str]) -> Settled:
    """Later layers go over earlier ones. `problems` that are known already are reported together
    with those found here."""
    config_class, problems = kind.config_class, [*problems]
    config, preset = config_class.for_environment(env)
    wanted: dict[str, Any] = dataclasses.asdict(config)
    run: dict[str, Any] = {}
    for layer in layers:
        wanted |= tidied(config_class, layer.config)
        run |= tidied(kind.run_class, layer.run)
    try:
        config = config_class(**wanted)
    except ConfigError as error:
        problems.append(str(error))
    settings = kind.run_class()
    try:
        settings = kind.run_class(**run)
    except ConfigError as error:
        problems.append(str(error).removeprefix(f"{kind.run_class.__name__}: "))
    if problems:
        raise ConfigError("; ".join(problems))
    sources = [preset, *(layer.source for layer in layers if layer.config)]
    named = " and ".join([", ".join(sources[:-1]), sources[-1]] if sources[1:] else sources)
    return Settled(settings, config, named)


def _completed(run: RunSettings, algorithm: type[Algorithm], env: str) -> RunSettings:
    """With the defaults that depend on something."""
    familiar = env == DEFAULT_ENVIRONMENT
    steps = run.steps or (DEFAULT_STEPS if familiar else DEFAULT_STEPS_ELSEWHERE)
    return dataclasses.replace(run, steps=steps, envs=run.envs or algorithm.num_envs)


def tidied(config_class: type[Config], values: dict[str, Any]) -> dict[str, Any]:
    """ "none" stands for None, which TOML lacks; and a list of one need not look like a list."""
    kinds = {field.name: field.type for field in dataclasses.fields(config_class)}  # type: ignore
    result = {}
    for name, value in values.items():
        if isinstance(value, str) and value.lower() == "none":
            value = None
        elif takes_a_list(kinds[name]) and not isinstance(value, list | tuple):
            value = (value,)
        if kinds[name] == tuple[str, ...]:
            value = [item for item in value or () if item != "none"]
        result[name] = value
    return result


def takes_a_list(annotation: Any) -> bool:
    return any(
        typing.get_origin(kind) is tuple for kind in (annotation, *typing.get_args(annotation))
    )
