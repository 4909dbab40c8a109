"""The settings of a run: how often it logs, evaluates and saves."""

from dataclasses import dataclass, replace
from typing import NamedTuple, final

from understudy.algorithms.config import Config, setting

# Defaults.
LEAST_BETWEEN_LOGS, VECTOR_STEPS_BETWEEN_LOGS, MOST_EVALUATIONS = 1_000, 100, 20
GENERATIONS_BETWEEN_LOGS = 10


class Intervals(NamedTuple):
    """Intervals in steps (of an agent) or in evaluations (of a repertoire); 0 means never."""

    log: int
    evaluate: int | None  # None: at the end only, in a row of its own
    checkpoint: int | None  # None: every minute or so


@final
@dataclass(frozen=True)
class RunConfig(Config):
    """Settings of logging, evaluation and checkpoints. Steps are environment steps per seed."""

    log_every: int | None = setting(None, at_least=1)
    """Steps between rows of the log (default: 1,000, or 100 steps of all environments; more if the
    rollouts of environments that run on the accelerator are longer)."""
    evaluate_every: int | None = setting(None, at_least=0)
    """Steps between evaluations; 0 evaluates only at the end (default: a twentieth of the run, or
    more, so that evaluation takes at most a tenth of the run's steps in time)."""
    evaluation_episodes: int = setting(10, at_least=1)
    """Episodes per seed and evaluation."""
    checkpoint_every: int | None = setting(None, at_least=0)
    """Steps between checkpoints; 0 saves only at the end (default: about every minute)."""
    keep_checkpoints: int = setting(2, at_least=1)
    """Number of newest checkpoints to keep, besides `best`."""
    log_episodes: bool = setting(True)
    """Write a line for each episode of training to `episodes.csv` in the run directory."""

    def completed(
        self, steps: int, num_envs: int, episode_steps: int, least_iterations: int = 1
    ) -> "RunConfig":
        """Fill in the intervals of a run of `steps` in all on `num_envs` environments per seed,
        whose episodes take at most `episode_steps`. Rows of the log are whole multiples of
        `least_iterations` vector steps apart.

        Environments are stepped together, in training and in evaluation. An evaluation takes
        as many such vector steps as the longest episode has steps. Evaluations are so few that they
        take at most a tenth of training's vector steps, the one at the end aside."""
        log_every, evaluate_every = self.log_every, self.evaluate_every
        if log_every is None:
            least = max(LEAST_BETWEEN_LOGS, VECTOR_STEPS_BETWEEN_LOGS * num_envs)
            unit = least_iterations * num_envs
            log_every = least if least_iterations == 1 else -(-least // unit) * unit
        if evaluate_every is None:
            affordable = steps // num_envs // (10 * episode_steps)
            evaluate_every = -(-steps // min(max(affordable, 1), MOST_EVALUATIONS))
        return replace(self, log_every=log_every, evaluate_every=evaluate_every)

    def intervals(self, batch: int) -> Intervals:
        """The intervals, in steps. Unset ones are never; `batch` does not matter."""
        return Intervals(self.log_every or 0, self.evaluate_every or 0, self.checkpoint_every)


@final
@dataclass(frozen=True)
class QDRunConfig(Config):
    """Settings of logging, checkpoints and re-evaluation of a quality-diversity run."""

    log_every: int | None = setting(None, at_least=1)
    """Generations between rows of the log (default: 10; `understudy illuminate`: a fiftieth of the
    run)."""
    checkpoint_every: int | None = setting(None, at_least=0)
    """Generations between checkpoints; 0 saves only at the end (default: about every minute)."""
    keep_checkpoints: int = setting(2, at_least=1)
    """Number of newest checkpoints to keep."""
    reevaluation_episodes: int = setting(5, at_least=0)
    """Fresh episodes that each policy of the final repertoire plays, which corrects scores for
    luck; 0 skips this."""

    def intervals(self, batch: int) -> Intervals:
        """The intervals in evaluations, of which a generation has `batch`."""
        log, checkpoint = self.log_every or GENERATIONS_BETWEEN_LOGS, self.checkpoint_every
        return Intervals(log * batch, None, None if checkpoint is None else checkpoint * batch)
