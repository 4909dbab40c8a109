"""The task that every setting of a sweep is tried on."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from understudy.agent import Agent, agent_class, load
from understudy.algorithms.config import Config
from understudy.errors import ConfigError, DivergedError
from understudy.runs import checkpoint
from understudy.runs.callbacks import RowFunction
from understudy.runs.config import RunConfig
from understudy.sweep.result import Outcome, SweepResult
from understudy.sweep.space import Settings, Vary

EVALUATIONS = 10  # over a training
SCORE = "eval/mean_reward"


@final
@dataclasses.dataclass(frozen=True)
class Task:
    """An algorithm, an environment, and how long and how often to train."""

    kind: Any
    """A class of agents, or its name."""
    env: Any
    config: Any
    """The settings that do not vary (None: the environment's preset)."""
    steps: int
    repeats: int
    seed: int
    num_envs: int | None
    device: str | None
    episodes: int
    env_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.kind, str):
            object.__setattr__(self, "kind", agent_class(self.kind))
        if self.config is None:
            object.__setattr__(self, "config", self._preset)
        for name in ("steps", "repeats", "episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def _preset(self) -> Any:
        name = self.env if isinstance(self.env, str) else None
        return self.kind.algorithm_class.config_class.preset(name)

    @property
    def run(self) -> RunConfig:
        every = max(1, self.steps // EVALUATIONS)
        return RunConfig(
            log_every=every,
            evaluate_every=every,
            evaluation_episodes=self.episodes,
            keep_checkpoints=1,
        )

    @property
    def env_name(self) -> str:
        return self.env if isinstance(self.env, str) else "an environment of your own"

    def with_settings(self, settings: Settings) -> Any:
        """Return the config of one setting, checked."""
        return dataclasses.replace(self.config, **settings)

    def agent(self, config: Config, num_seeds: int) -> Agent:
        agent = self.kind(
            self.env,
            config,
            seed=self.seed,
            num_seeds=num_seeds,
            num_envs=self.num_envs,
            env_args=dict(self.env_args),
            device=self.device,
        )
        agent.preset = "sweep"
        return agent

    def train(
        self,
        settings: Settings,
        callback: RowFunction,
        run_dir: Path | None = None,
    ) -> tuple[np.ndarray, int]:
        """Train one setting, or continue its run in `run_dir`. Return the returns of the last
        evaluation, [repeats, episodes], and the steps of this call."""
        with contextlib.closing(self._agent_in(run_dir, settings)) as agent:
            missing = self.steps - agent.steps
            if missing < 1:  # its process died after the last step, before it could report
                return agent.play_selection(self.episodes).returns, 0
            summary = agent.train(
                missing, run=self.run, run_dir=run_dir, callbacks=(callback,), progress=False
            )
        if summary.diverged:
            raise DivergedError(f"training diverged with seed {self.seed + summary.diverged[0]}")
        assert summary.returns is not None
        return summary.returns, summary.steps

    def _agent_in(self, run_dir: Path | None, settings: Settings) -> Agent:
        if run_dir is not None and checkpoint.numbered(run_dir):
            env = None if isinstance(self.env, str) else self.env
            args = dict(self.env_args) if env is None else None
            return load(run_dir, env=env, device=self.device, env_args=args)
        if run_dir is not None:  # its process died before the first checkpoint
            shutil.rmtree(run_dir, ignore_errors=True)
        return self.agent(self.with_settings(settings), self.repeats)

    def result(self, vary: Vary, outcomes: list[Outcome]) -> SweepResult:
        usual = self._preset
        flags = {
            field: value
            for field, value in dataclasses.asdict(self.config).items()
            if value != getattr(usual, field) and field not in vary
        }
        if self.num_envs is not None:
            flags["envs"] = self.num_envs
        name = self.kind.algorithm_class.name
        args = dict(self.env_args)
        return SweepResult(name, self.env_name, self.steps, dict(vary), outcomes, flags, args)


Report = Callable[[str], Any]  # is given one line for the user
