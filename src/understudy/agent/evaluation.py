"""An agent's evaluations: environments that are kept between them, and the scores of the seeds."""

from typing import Any, final

import numpy as np

from understudy.agent.inside import Trained
from understudy.algorithms.config import whole_number
from understudy.envs.descriptors import Descriptor, find_descriptor
from understudy.training.episode_runner import Mode
from understudy.training.evaluation import (
    Evaluation,
    EvaluationPlan,
    HostEvaluator,
    NativeEvaluator,
)
from understudy.training.factory import make_evaluator
from understudy.training.meter import Meter, diverged
from understudy.types import ConfigError, Continuous


@final
class Evaluating:
    """Plays episodes with the present policies, and knows which seed did best."""

    def __init__(self, trained: Trained, env_name: str | None):
        self._trained, self._env_name = trained, env_name
        self._evaluators: dict[EvaluationPlan, HostEvaluator | NativeEvaluator] = {}
        self.scores: np.ndarray | None = None  # mean return of each seed; NaN if it diverged

    def plan(
        self,
        episodes: Any,
        descriptor: str | Descriptor | None,
        seed: Any,
        deterministic: bool,
        epsilon: Any,
    ) -> EvaluationPlan:
        """Check what a user asks for. The default seed is the agent's own."""
        episodes, source = whole_number("episodes", episodes, 1), self._trained.source
        seed = self._trained.setting.seed if seed is None else whole_number("seed", seed, 0)
        if descriptor is not None:
            descriptor = find_descriptor(source.descriptors, descriptor, self._env_name)
        if epsilon is None:
            epsilon = 0.0
        elif isinstance(self._trained.setting.spec.action, Continuous):
            raise ConfigError("epsilon is for discrete actions, and this agent's are continuous")
        elif isinstance(epsilon, bool) or not isinstance(epsilon, int | float):
            raise ConfigError(f"epsilon must be a number, got {epsilon!r}")
        elif not 0 <= epsilon <= 1:
            raise ConfigError(f"epsilon must be between 0 and 1, got {epsilon:g}")
        return EvaluationPlan(episodes, descriptor, seed, Mode(not deterministic, float(epsilon)))

    def play(self, plan: EvaluationPlan, policy: Any, meter: Meter) -> Evaluation:
        """Evaluations that select the best policy set the scores; others do where none has. The
        environments of the latest one of either kind are kept."""
        if plan not in self._evaluators:
            for other in [
                one for one in self._evaluators if (one.seed is None) == (plan.seed is None)
            ]:
                self._evaluators.pop(other).close()
            trained = self._trained
            made = make_evaluator(trained.setting, trained.source, plan, trained.guard)
            self._evaluators[plan] = made
        played = self._evaluators[plan].play(policy)
        if plan.seed is None or self.scores is None:
            self.scores = np.where(diverged(meter), np.nan, played.returns.mean(axis=1))
        return played

    @property
    def best(self) -> int:
        """The seed with the best score; the first one before there are any."""
        if self.scores is None:
            return 0
        return int(np.nan_to_num(self.scores, nan=-np.inf).argmax())

    def close(self) -> None:
        for evaluator in self._evaluators.values():
            evaluator.close()
        self._evaluators.clear()
