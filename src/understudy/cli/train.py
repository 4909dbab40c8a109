"""Train an agent. Its log, learning curve and checkpoints go to a directory. The defaults of ALGO
and ENV are sac and Pendulum-v1."""

import argparse
import dataclasses
from typing import final

from understudy.agent import agent_class
from understudy.agent.illumination import METHODS
from understudy.algorithms import available, find
from understudy.algorithms.config import Config, setting
from understudy.cli.flags import add_run, plan_run, read_config_file, words_of
from understudy.cli.parsing import Parser
from understudy.cli.running import open_loggers, resources_of, start
from understudy.cli.settings import RunSettings, Schema, field_names
from understudy.distributed.config import Cluster
from understudy.envs.fault_guard import Guard
from understudy.errors import ConfigError
from understudy.runs.config import RunConfig
from understudy.training.devices import configure_process

USAGE = "train [ALGO] [ENV] [flags]"
DEFAULT_ALGORITHM, DEFAULT_ENVIRONMENT = "sac", "Pendulum-v1"


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
    recipe: str | None = setting(None)
    """Settings of a paper, over those of the environment's preset (understudy list recipes)."""

    def steps_on(self, env: str) -> int:
        return self.steps or (10_000 if env == DEFAULT_ENVIRONMENT else 1_000_000)


def add_flags(parser: Parser, arguments: list[str]) -> None:
    """The flags depend on the algorithm, which the arguments or the config file name."""
    content, words = read_config_file(arguments), words_of(arguments)
    name = words[0] if words else content.get("algorithm", DEFAULT_ALGORITHM)
    if name.lower() in METHODS:
        raise ConfigError(f"{name} trains no agent: understudy illuminate {name}")
    env = words[1] if words[1:] else content.get("env", DEFAULT_ENVIRONMENT)
    sections = (TrainSettings, RunSettings, Guard, Cluster, RunConfig)
    fields = {section: field_names(section) for section in sections}
    add_run(parser, "ALGO", Schema(find(name).name, config_classes(), fields), env, content)


def config_classes() -> dict[str, type[Config]]:
    """The config class of every algorithm, by name."""
    return {name: algorithm.config_class for name, algorithm in available().items()}


def run(options: argparse.Namespace) -> None:
    plan = plan_run(options)
    given, algorithm = plan.run[TrainSettings], find(plan.schema.name)
    steps, envs = given.steps_on(plan.env), given.envs or algorithm.num_envs
    plan.run[TrainSettings] = dataclasses.replace(given, steps=steps, envs=envs)
    loggers = open_loggers(plan.run[RunSettings].logger)
    configure_process(algorithm(plan.config).needs)
    agent = agent_class(algorithm.name)(
        plan.env, plan.config, num_seeds=given.seeds, num_envs=envs, **resources_of(plan)
    )
    start(options, plan, agent, steps, plan.run[RunConfig], loggers)
