"""The training of an agent as a run advances it, and the metrics that it logs."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from understudy.envs.episode_info import EpisodeInfo, KeyLimit, describe
from understudy.runner import Description
from understudy.runs.callbacks import Episode
from understudy.runs.csv_log import LogRow
from understudy.runs.run_directory import CURVE
from understudy.runs.trainable import Capture, Trainable
from understudy.training.episode_runner import EpisodeResults
from understudy.training.open_episodes import EndedEpisode
from understudy.training.trainer import Trainer


@final
@dataclass
class Summary:
    """The result of `train`."""

    steps: int
    seconds: float
    returns: np.ndarray | None  # the last evaluation, [seeds, episodes]
    history: list[LogRow] = field(default_factory=list)
    diverged: tuple[int, ...] = ()  # seeds that are frozen because their updates were not finite

    @property
    def mean(self) -> float:
        return float("nan") if self.returns is None else float(self.returns.mean())

    def __repr__(self) -> str:
        rate = self.steps / max(self.seconds, 1e-9)
        return (
            f"Summary(steps={self.steps}, seconds={self.seconds:.1f}, "
            f"steps_per_second={rate:.0f}, evaluation_mean={self.mean:.1f})"
        )


@final
@dataclass
class TrainableAgent(Trainable):
    """A trainer, with the agent's own functions to evaluate and to save."""

    trainer: Trainer
    play: Callable[[], EpisodeResults]
    """Plays an evaluation, and returns its results [seeds, episodes]."""
    capture: Capture
    describe_policy: Callable[[], Description] | None
    returns: np.ndarray | None = None
    """The last evaluation, [seeds, episodes]."""
    ended: list[LogRow] = field(default_factory=list)

    unit: ClassVar[str] = "steps"

    def __post_init__(self) -> None:
        self.batch, self.position = self.trainer.setup.num_envs, self.trainer.position
        self.chunk = self.batch * self.trainer.chunk_iterations
        self._logged_steps = self.count
        self._begun = (self.position.seconds, time.perf_counter())
        self._key_limit = KeyLimit()

    @property
    def count(self) -> int:
        return self.trainer.steps

    def advance(self, iterations: int) -> None:
        self.trainer.advance(iterations)

    def block_until_ready(self) -> None:
        self.trainer.block_until_ready()

    def new_episodes(self) -> list[Episode]:
        return [
            Episode(*one[:3], info=self._flatten_info(one.info))
            for one in self.trainer.new_episodes()
        ]

    def _flatten_info(self, info: EpisodeInfo | None) -> dict[str, float]:
        """Return the numbers, and success among them."""
        means, success = info or EpisodeInfo({})
        flag = {} if success is None else {"success": float(success)}
        return self._key_limit.select(means) | flag

    def interrupt(self) -> None:
        self.trainer.interrupted = True

    def counters(self) -> LogRow:
        return {"time/total_steps": self.count}

    def metrics(self, seconds: float) -> LogRow:
        """Means over seeds, and values per seed where there are several."""
        trainer = self.trainer
        row = self.counters() | {"time/updates": self.position.updates}
        row |= self._count_episodes(trainer.episodes())
        for name, values in trainer.metrics().items():
            row[f"train/{name}"] = float(np.nanmean(values))
        diverged = trainer.diverged()
        if diverged.any():
            row["train/diverged_seeds"] = int(diverged.sum())
            row["train/diverged_per_seed"] = diverged.astype(float).tolist()
        row |= {f"env/{name}": count for name, count in trainer.faults().items() if count}
        row |= {f"cluster/{name}": value for name, value in trainer.cluster_metrics().items()}
        row["time/fps"] = (self.count - self._logged_steps) / max(seconds, 1e-9)
        row["time/time_elapsed"] = self.position.seconds
        self._logged_steps = self.count
        return row

    def _count_episodes(self, episodes: list[EndedEpisode]) -> LogRow:
        """Return the part of a row that is about episodes; `ended` gets a line for each."""
        self.ended = [self._describe_episode(episode) for episode in episodes]
        if not episodes:
            return {}
        by_seed: list[list[EndedEpisode]] = [[] for _ in range(self.trainer.setup.num_seeds)]
        for episode in episodes:
            by_seed[episode.seed_index].append(episode)
        returns = [[episode.total_reward for episode in of_seed] for of_seed in by_seed]
        means = [float(np.mean(of_seed)) if of_seed else np.nan for of_seed in returns]
        row = _with_seeds("rollout/ep_rew", means, "_mean")
        row["rollout/ep_len_mean"] = float(np.mean([episode.length for episode in episodes]))
        infos = [[episode.info for episode in of_seed] for of_seed in by_seed]
        return row | self._describe_infos("rollout/success_rate", "info", infos)

    def _describe_episode(self, episode: EndedEpisode) -> LogRow:
        """Return the line of an episode in its log."""
        means, success = episode.info or EpisodeInfo({})
        seconds, begun = self._begun
        line = {
            "step": episode.step,
            "seed": self.trainer.setup.seed + episode.seed_index,
            "env": episode.env,
            "return": episode.total_reward,
            "length": episode.length,
            "success": None if success is None else int(success),
            "seconds": round(seconds + max(0.0, episode.clock - begun), 3),
        }
        return line | {f"info/{k}": mean for k, mean in self._key_limit.select(means).items()}

    def _describe_infos(self, success: str, prefix: str, infos: Any) -> LogRow:
        rates, means = describe(infos)
        row = {} if np.isnan(rates).all() else _with_seeds(success, rates)
        return row | {f"{prefix}/{k}": mean for k, mean in self._key_limit.select(means).items()}

    def evaluate(self) -> LogRow:
        results = self.play()
        self.returns = results.returns
        row = _with_seeds("eval/mean_reward", results.returns.mean(axis=1).tolist())
        row |= {"eval/std_reward": float(results.returns.std())}
        if results.infos is None:
            return row
        return row | self._describe_infos("eval/success_rate", "eval/info", results.infos)

    def memory_settings(self) -> dict[str, int]:
        config = self.trainer.setup.algorithm.config
        names = ("batch_size", "buffer_size")
        sizes = {name: getattr(config, name) for name in names if hasattr(config, name)}
        return sizes | {"num_seeds": self.trainer.setup.num_seeds}

    def draw(self, directory: Path, title: str) -> None:
        # Matplotlib takes half a second to import, so it is imported when there is a picture.
        from understudy.reports.curves import learning_curve

        learning_curve(directory, directory / CURVE, title)

    def summary(self, start: int, seconds: float, history: list[LogRow]) -> Summary:
        """The summary of a run from step `start` to here."""
        diverged = tuple(np.flatnonzero(self.trainer.diverged()).tolist())
        return Summary(self.count - start, seconds, self.returns, history, diverged)


def _with_seeds(name: str, values: list[float], suffix: str = "") -> LogRow:
    """The mean of the values that are numbers, and all values where there are several seeds."""
    known = [value for value in values if not np.isnan(value)]
    row: LogRow = {f"{name}{suffix}": float(np.mean(known)) if known else float("nan")}
    if len(values) > 1:
        row[f"{name}_per_seed"] = values
    return row
