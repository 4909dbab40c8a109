"""Find the best policy of every kind of behavior. The policies, their map and their log go to a
directory. The defaults of METHOD and ENV are pga-me and jax:PointNavigation-v0."""

import argparse
import dataclasses
import math
from typing import Any, final

from understudy.agent.illumination import METHODS
from understudy.algorithms.config import Config, nearest, setting
from understudy.cli.flags import add_run, plan_run, read_config_file, words_of
from understudy.cli.parsing import Parser
from understudy.cli.running import open_loggers, resources_of, start
from understudy.cli.settings import RunSettings, Schema, field_names
from understudy.distributed.config import Cluster
from understudy.envs.fault_guard import Guard
from understudy.errors import ConfigError
from understudy.runs.config import QDRunConfig

USAGE = "illuminate [METHOD] [ENV] [flags]"
DEFAULT_METHOD, DEFAULT_ENVIRONMENT = "pga-me", "jax:PointNavigation-v0"
LOGS = 50  # in a run, by default


@final
@dataclasses.dataclass(frozen=True)
class IlluminationSettings(Config):
    """Settings of `understudy illuminate` alone."""

    evaluations: int | None = setting(None, at_least=1)
    """Policies to evaluate in total, in whole generations (default: 5,000 on
    jax:PointNavigation-v0, elsewhere 20,000)."""
    descriptor: str | None = setting(None)
    """Name of the descriptor, which distinguishes behaviors (default: the environment's usual
    one)."""


def add_flags(parser: Parser, arguments: list[str]) -> None:
    """The flags depend on the method, which the arguments or the config file name."""
    content = read_config_file(arguments)
    name, env = _names(words_of(arguments), content)
    sections = (IlluminationSettings, RunSettings, Guard, Cluster, QDRunConfig)
    fields = {section: field_names(section) for section in sections}
    fields[Cluster] = ["collectors", "address"]
    configs = {name: method.config_class for name, method in METHODS.items()}
    add_run(parser, "METHOD", Schema(name, configs, fields), env, content)


def _names(words: list[str], content: dict[str, Any]) -> tuple[str, str]:
    """Method and environment. A single word is the environment, unless it resembles a method."""
    single = len(words) == 1 and words[0].lower() not in METHODS and not nearest(words[0], METHODS)
    method, env = [*words, None, None][:2] if not single else (None, words[0])
    method = (method or content.get("algorithm", DEFAULT_METHOD)).lower()
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise ConfigError(f"no method '{method}'{nearest(method, METHODS)}; there are: {known}")
    return method, env or content.get("env", DEFAULT_ENVIRONMENT)


def run(options: argparse.Namespace) -> None:
    plan = plan_run(options)
    given, size = plan.run[IlluminationSettings], plan.config.generation_size
    usual = 5_000 if plan.env == DEFAULT_ENVIRONMENT else 20_000
    generations = math.ceil((given.evaluations or usual) / size)
    total, run_config = generations * size, plan.run[QDRunConfig]
    every = run_config.log_every or max(1, generations // LOGS)
    plan.run[IlluminationSettings] = dataclasses.replace(given, evaluations=total)
    plan.run[QDRunConfig] = run_config = dataclasses.replace(run_config, log_every=every)
    loggers = open_loggers(plan.run[RunSettings].logger)
    method = METHODS[plan.schema.name]
    found = method(plan.env, plan.config, descriptor=given.descriptor, **resources_of(plan))
    start(options, plan, found, total, run_config, loggers)
