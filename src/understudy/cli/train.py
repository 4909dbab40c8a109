"""`understudy train`."""

import argparse
import dataclasses
from typing import final

from understudy.agent import Agent, agent_class
from understudy.agent.illumination import METHODS
from understudy.algorithms import available, find
from understudy.algorithms.config import Config, setting
from understudy.cli.flags import PRECEDENCE, add_run, plan_run, read_config_file, words_of
from understudy.cli.parsing import Parser, device_of
from understudy.cli.running import cluster_of, start
from understudy.cli.settings import Plan, RunSettings, Schema, field_names
from understudy.distributed.config import Cluster
from understudy.envs.fault_guard import Guard
from understudy.errors import ConfigError
from understudy.runs.config import RunConfig
from understudy.training.devices import configure_process

DEFAULT_ALGORITHM, DEFAULT_ENVIRONMENT = "sac", "Pendulum-v1"
DESCRIPTION = """\
Train an agent. Its log, learning curve and checkpoints go to a directory. The defaults of ALGO and
ENV are sac and Pendulum-v1."""


@final
@dataclasses.dataclass(frozen=True)
class TrainSettings(Config):
    """Settings of `understudy train` alone."""

    steps: int | None = setting(None, at_least=1)
    """Environment steps in total, per seed (default: 10,000 on Pendulum-v1, elsewhere
    1,000,000)."""
    seeds: int = setting(1, at_least=1)
    """Number of seeds, trained in one program."""
    envs: int | None = setting(None, at_least=1)
    """Environments per seed (default: the algorithm's own number)."""

    def steps_on(self, env: str) -> int:
        return self.steps or (10_000 if env == DEFAULT_ENVIRONMENT else 1_000_000)


def parser(arguments: list[str]) -> Parser:
    """The flags depend on the algorithm, which the arguments or the config file name."""
    content, words = read_config_file(arguments), words_of(arguments)
    name = words[0] if words else content.get("algorithm", DEFAULT_ALGORITHM)
    if name.lower() in METHODS:
        raise ConfigError(f"{name} trains no agent: understudy illuminate {name}")
    result = Parser("train [ALGO] [ENV] [flags]", DESCRIPTION, _train, PRECEDENCE)
    env = words[1] if words[1:] else content.get("env", DEFAULT_ENVIRONMENT)
    sections = (TrainSettings, RunSettings, Guard, Cluster, RunConfig)
    fields = {section: field_names(section) for section in sections}
    schema = Schema(find(name).name, config_classes(), fields)
    return add_run(result, "ALGO", schema, env, content)


def config_classes() -> dict[str, type[Config]]:
    """The config class of every algorithm, by name."""
    return {name: algorithm.config_class for name, algorithm in available().items()}


def _train(options: argparse.Namespace) -> None:
    plan = plan_run(options)
    given, first = plan.run[TrainSettings], plan.run[RunSettings].seed
    steps, envs = given.steps_on(plan.env), given.envs or find(plan.schema.name).num_envs
    plan.run[TrainSettings] = dataclasses.replace(given, steps=steps, envs=envs)
    seeds = f", seeds {first}–{first + given.seeds - 1}" * (given.seeds > 1)
    start(options, plan, _make_agent, steps, plan.run[RunConfig], f"{steps:,} steps{seeds}")


def _make_agent(plan: Plan) -> Agent:
    train, run = plan.run[TrainSettings], plan.run[RunSettings]
    configure_process(find(plan.schema.name)(plan.config).needs)
    return agent_class(plan.schema.name)(
        plan.env,
        plan.config,
        seed=run.seed,
        num_seeds=train.seeds,
        num_envs=train.envs,
        env_workers=run.env_workers,
        guard=plan.run[Guard],
        cluster=cluster_of(plan),
        device=device_of(run.device),
    )
