"""An agent's evaluations: environments that are kept between them, and the scores of the seeds."""

from typing import Any, final

import numpy as np

from understudy.agent.inside import Trained
from understudy.algorithms.config import whole_number
from understudy.envs.descriptors import Descriptor, find_descriptor
from understudy.envs.seeds import SELECTION
from understudy.training.episode_runner import EpisodePlan, EpisodeResults, EpisodeRunner
from understudy.training.factory import make_episode_runner, plan_evaluation
from understudy.training.meter import Meter, diverged
from understudy.types import ConfigError, Continuous


@final
class Evaluating:
    """Plays episodes with the present policies, and knows which seed did best."""

    def __init__(self, trained: Trained, env_name: str | None):
        self._trained, self._env_name = trained, env_name
        self._runners: dict[EpisodePlan, EpisodeRunner] = {}
        self.scores: np.ndarray | None = None  # mean return of each seed; NaN if it diverged

    def plan(
        self,
        episodes: Any,
        descriptor: str | Descriptor | None,
        seed: Any,
        deterministic: bool,
        epsilon: Any,
    ) -> EpisodePlan:
        """Check what a user asks for. The default seed is the agent's own."""
        episodes, source = whole_number("episodes", episodes, 1), self._trained.source
        seed = self._trained.setup.seed if seed is None else whole_number("seed", seed, 0)
        if descriptor is not None:
            descriptor = find_descriptor(source.descriptors, descriptor, self._env_name)
        if epsilon is None:
            epsilon = 0.0
        elif isinstance(self._trained.setup.spec.action, Continuous):
            raise ConfigError("epsilon is for discrete actions, and this agent's are continuous")
        elif isinstance(epsilon, bool) or not isinstance(epsilon, int | float):
            raise ConfigError(f"epsilon must be a number, got {epsilon!r}")
        elif not 0 <= epsilon <= 1:
            raise ConfigError(f"epsilon must be between 0 and 1, got {epsilon:g}")
        return plan_evaluation(
            self._trained.setup, source, episodes, descriptor=descriptor, seed=seed,
            explore=not deterministic, epsilon=float(epsilon),
        )  # fmt: skip

    def plan_selection(self, episodes: int) -> EpisodePlan:
        """The episodes by which training selects the best policy."""
        return plan_evaluation(self._trained.setup, self._trained.source, episodes)

    def play(self, plan: EpisodePlan, policy: Any, meter: Meter) -> EpisodeResults:
        """Evaluations that select the best policy set the scores; others do where none has. The
        environments of the latest one of either kind are kept."""
        if plan not in self._runners:
            for other in [one for one in self._runners if one.seeds.stream == plan.seeds.stream]:
                self._runners.pop(other).close()
            trained = self._trained
            self._runners[plan] = make_episode_runner(plan, trained.source, trained.guard)
        results = plan.by_policy(self._runners[plan].run(policy))
        if plan.seeds.stream == SELECTION or self.scores is None:
            self.scores = np.where(diverged(meter), np.nan, results.returns.mean(axis=1))
        return results

    @property
    def best(self) -> int:
        """The seed with the best score; the first one before there are any."""
        if self.scores is None:
            return 0
        return int(np.nan_to_num(self.scores, nan=-np.inf).argmax())

    def close(self) -> None:
        for runner in self._runners.values():
            runner.close()
        self._runners.clear()
