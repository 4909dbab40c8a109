"""Callbacks that are ready to use: `agent.train(steps, callbacks=[us.callbacks.EarlyStopping(5)])`.
`us.Callback` is the base class of your own."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from understudy.algorithms.config import whole_number
from understudy.errors import CheckpointError, ConfigError, import_extra
from understudy.runs import checkpoint, schema
from understudy.runs.callbacks import Callback as Callback
from understudy.runs.callbacks import Episode as Episode
from understudy.runs.csv_log import LogRow

SCORE = "eval/mean_reward"

_log = logging.getLogger("understudy.callbacks")


@final
class EarlyStopping(Callback):
    """End training after `patience` evaluations in a row whose mean return does not exceed the best
    one so far by more than `min_delta`."""

    def __init__(self, patience: int, min_delta: float = 0.0):
        self.patience = whole_number("patience", patience, 1)
        self.min_delta = _finite("min_delta", min_delta)
        if self.min_delta < 0:
            raise ConfigError(f"min_delta must be at least 0, got {min_delta}")
        self.best: float | None = None
        self.waited = 0  # evaluations since the best one

    def on_evaluation(self, agent: Any, results: LogRow) -> bool:
        score = results[SCORE]
        least = -math.inf if self.best is None else self.best + self.min_delta
        improves = score > least  # never if it is NaN: every seed has diverged
        self.best, self.waited = (score, 0) if improves else (self.best, self.waited + 1)
        return self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        kinds = {"best": schema.optional(schema.number), "waited": schema.whole(0, 2**53)}
        _check_state(self, state, kinds)
        self.best, self.waited = state["best"], state["waited"]


@final
class StopAtReturn(Callback):
    """End training at the first evaluation whose mean return is at least `threshold`."""

    def __init__(self, threshold: float):
        self.threshold = _finite("threshold", threshold)

    def on_evaluation(self, agent: Any, results: LogRow) -> bool:
        return results[SCORE] >= self.threshold


@final
class Curriculum(Callback):
    """Set an attribute of the training environments to the next of `values` whenever the mean over
    the last `window` episodes, of all seeds together, reaches `threshold`.

    The first value is set when training begins. Each environment has a value from its next reset
    on; then the window begins anew. The log has the level as `curriculum/level`, from 0 on.
    Environments of evaluations stay as they were made."""

    def __init__(
        self,
        attribute: str,
        values: Sequence[Any],
        threshold: float,
        window: int = 20,
        metric: str = "return",
    ):
        """`metric` is "return", or "success": the share of episodes whose last `info` had
        `success` or `is_success`."""
        if not isinstance(values, list | tuple) or len(values) < 2:
            raise ConfigError(f"a curriculum has at least two values, got {values!r:.60}")
        if metric not in ("return", "success"):
            raise ConfigError(f'metric must be "return" or "success", got {metric!r}')
        self.attribute, self.values = attribute, list(values)
        self.threshold = _finite("threshold", threshold)
        self.window, self.metric = whole_number("window", window, 1), metric
        self.level: int | None = None  # before the first training
        self.results: list[float] = []  # of the latest episodes

    def on_train_start(self, agent: Any) -> None:
        if self.level is None:
            self._set_level(agent, 0)
            self._log_level(agent)

    def on_log(self, agent: Any, row: LogRow) -> None:
        self._log_level(agent)  # the next row has the level also if no episode ends

    def on_episode(self, agent: Any, episode: Episode) -> None:
        self.results = [*self.results, self._measure(episode)][-self.window :]
        full = len(self.results) == self.window
        if full and sum(self.results) / self.window >= self.threshold:
            assert self.level is not None
            if self.level + 1 < len(self.values):
                self._set_level(agent, self.level + 1)
        self._log_level(agent)

    def _log_level(self, agent: Any) -> None:
        agent.log("curriculum/level", self.level)

    def _measure(self, episode: Episode) -> float:
        if self.metric == "return":
            return episode.total_reward
        if "success" not in episode.info:
            raise ConfigError(
                'metric="success" needs environments whose info has "success" or "is_success" at '
                'the end of an episode: add it, or use metric="return"'
            )
        return episode.info["success"]

    def _set_level(self, agent: Any, level: int) -> None:
        agent.envs.set_attr(self.attribute, self.values[level])
        self.level, self.results = level, []

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level, "results": self.results}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        level = schema.optional(schema.whole(0, len(self.values) - 1))
        _check_state(self, state, {"level": level, "results": schema.list_of(schema.number)})
        self.level, self.results = state["level"], state["results"]


@final
class WandbArtifacts(Callback):
    """Upload checkpoints as artifacts of the W&B run that `train(logger="wandb")` opens: `best`
    whenever a new one was written, `last` at the end of training. A failed upload costs one
    warning, and training continues."""

    def __init__(self, best: bool = True, last: bool = True, name: str | None = None):
        """`name` is the artifact's (default: "checkpoint-" and the id of the W&B run). Its versions
        have the aliases "best" or "last", and "step-" with the number of steps."""
        if not best and not last:
            raise ConfigError("WandbArtifacts(best=False, last=False) would upload nothing")
        self._wandb = import_extra("wandb", "wandb", "wandb is not installed")
        self._aliases = [*(["best"] if best else []), *(["last"] if last else [])]
        self._name, self._newest, self._warned = name, None, False

    def on_checkpoint(self, agent: Any, path: Path) -> None:
        if path.name != checkpoint.BEST:
            self._newest = path
        elif "best" in self._aliases:
            self._upload(agent, path, "best")

    def on_train_end(self, agent: Any) -> None:
        if self._newest is None:
            _log.warning("nothing was uploaded to W&B: give train(run_dir=…) for checkpoints")
        elif "last" in self._aliases:
            self._upload(agent, self._newest, "last")

    def _upload(self, agent: Any, path: Path, alias: str) -> None:
        run = self._wandb.run
        try:
            if run is None:
                raise RuntimeError('no W&B run is open: give train(logger="wandb")')
            name = self._name or f"checkpoint-{run.id}"
            # A repertoire counts the evaluations of policies instead of steps.
            count = agent.steps if hasattr(agent, "steps") else agent.evaluations
            artifact = self._wandb.Artifact(name, type="model", metadata={"steps": count})
            artifact.add_dir(str(path))
            run.log_artifact(artifact, aliases=[alias, f"step-{count}"])
        except Exception as error:  # a tracker that is down must not end a training
            if not self._warned:
                _log.warning("%s was not uploaded to W&B: %s", path, " ".join(str(error).split()))
            self._warned = True


def _finite(name: str, value: Any) -> float:
    if not schema.number(value):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def _check_state(callback: Callback, state: Any, kinds: dict[str, schema.Kind]) -> None:
    """Refuse a state that this library would not write."""
    if wrong := schema.problems(state, kinds):
        name = type(callback).__name__
        raise CheckpointError(f"the stored state of {name} is damaged: {'; '.join(wrong[:3])}")
