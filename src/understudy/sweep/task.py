"""What every setting of a sweep is tried on."""

import dataclasses
from pathlib import Path
from typing import Any, final

import numpy as np

from understudy.agent import Agent, agent_class
from understudy.agent.training import Summary
from understudy.algorithms.config import Config
from understudy.errors import ConfigError, DivergedError
from understudy.runs.config import RunConfig
from understudy.sweep.result import Outcome, SweepResult
from understudy.sweep.space import Settings, Vary

EVALUATIONS = 10  # over a training


@final
@dataclasses.dataclass(frozen=True)
class Task:
    """An algorithm, an environment, and how long and how often to train."""

    kind: type[Agent]
    env: Any
    config: Any
    steps: int
    repeats: int
    seed: int
    num_envs: int | None
    device: str | None
    episodes: int

    def __post_init__(self) -> None:
        for name in ("steps", "repeats", "episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def run(self) -> RunConfig:
        every = max(1, self.steps // EVALUATIONS)
        return RunConfig(log_every=every, evaluate_every=every, evaluation_episodes=self.episodes)

    @property
    def env_name(self) -> str:
        return self.env if isinstance(self.env, str) else "an environment of your own"

    def with_settings(self, settings: Settings) -> Any:
        """The config of one setting, checked."""
        return dataclasses.replace(self.config, **settings)

    def agent(self, config: Config, members: int) -> Agent:
        return self.kind(
            self.env,
            config,
            seed=self.seed,
            num_seeds=members,
            num_envs=self.num_envs,
            device=self.device,
        )

    def result(self, vary: Vary, outcomes: list[Outcome]) -> SweepResult:
        name, usual = self.kind.algorithm_class.name, _preset(self.kind, self.env)
        flags = {
            field: value
            for field, value in dataclasses.asdict(self.config).items()
            if value != getattr(usual, field) and field not in vary
        }
        if self.num_envs is not None:
            flags["envs"] = self.num_envs
        return SweepResult(name, self.env_name, self.steps, dict(vary), outcomes, flags)


def make_task(
    kind: str | type[Agent],
    env: Any,
    config: Config | None,
    steps: int,
    repeats: int,
    seed: int,
    num_envs: int | None,
    device: str | None,
    episodes: int,
) -> Task:
    """Without a config, settings vary around the environment's preset."""
    found = agent_class(kind) if isinstance(kind, str) else kind
    config = _preset(found, env) if config is None else config
    return Task(found, env, config, steps, repeats, seed, num_envs, device, episodes)


def _preset(kind: type[Agent], env: Any) -> Any:
    name = env if isinstance(env, str) else None
    return kind.algorithm_class.config_class.for_environment(name)[0]


def returns_of(summary: Summary, seed: int) -> np.ndarray:
    """Returns [repeats, episodes] of the last evaluation, where all repeats have learned."""
    if summary.diverged:
        raise DivergedError(f"training diverged with seed {seed + summary.diverged[0]}")
    assert summary.returns is not None
    return summary.returns


def make_directory(directory: Path) -> None:
    """Before the work, not after it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be made: {error.strerror}") from error
