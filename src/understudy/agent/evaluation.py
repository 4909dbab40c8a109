"""The evaluations of an agent, and the scores of its seeds."""

from dataclasses import replace
from typing import Any, final

import numpy as np

from understudy.agent.trainer_factory import TrainerFactory
from understudy.algorithms.config import whole_number
from understudy.envs.descriptors import Descriptor, find_descriptor
from understudy.envs.episode_info import KeyLimit, describe
from understudy.envs.seeds import EVALUATION, SELECTION, EpisodeSeeds
from understudy.ops.statistics import summary
from understudy.training.episode_runner import EpisodePlan, EpisodeResults, EpisodeRunner
from understudy.training.factory import make_episode_runner, plan_selection
from understudy.training.update import LearnerState, is_frozen
from understudy.types import ConfigError, Continuous


@final
class AgentEvaluator:
    """Plays episodes with the policies of an agent, and remembers the scores of its seeds."""

    def __init__(self, factory: TrainerFactory, env_name: str | None):
        """Play on environments like those of the trainer, with as many workers."""
        self._setup, self._source, self._env_name = factory.setup, factory.source, env_name
        self._env_workers, self._guard = factory.env_workers, factory.guard
        self.runners: dict[EpisodePlan, EpisodeRunner] = {}
        self.scores: np.ndarray | None = None  # mean return of each seed; NaN if it diverged
        self.scored_at: int | None = None  # the step at which the present policies had them

    def plan(
        self,
        episodes: Any,
        descriptor: str | Descriptor | None,
        seed: Any,
        deterministic: bool,
        epsilon: Any,
    ) -> EpisodePlan:
        """Check the arguments of an evaluation. The default seed is the agent's."""
        episodes = whole_number("episodes", episodes, 1)
        seed = self._setup.seed if seed is None else whole_number("seed", seed, 0)
        if descriptor is not None:
            descriptor = find_descriptor(self._source.descriptors, descriptor, self._env_name)
        if epsilon is None:
            epsilon = 0.0
        elif isinstance(self._setup.spec.action, Continuous):
            raise ConfigError("epsilon is for discrete actions, and this agent's are continuous")
        elif isinstance(epsilon, bool) or not isinstance(epsilon, int | float):
            raise ConfigError(f"epsilon must be a number, got {epsilon!r}")
        elif not 0 <= epsilon <= 1:
            raise ConfigError(f"epsilon must be between 0 and 1, got {epsilon:g}")
        seeds = EpisodeSeeds(seed, episodes, self._setup.num_seeds, EVALUATION)
        plan = replace(self.plan_selection(episodes), seeds=seeds, descriptor=descriptor)
        return replace(plan, explore=not deterministic, epsilon=float(epsilon))

    def plan_selection(self, episodes: int) -> EpisodePlan:
        """The episodes by which training selects the best seed. Those of an evaluation are others,
        so that what they measure was not selected for."""
        return plan_selection(self._setup, self._source, episodes)

    def play(self, plan: EpisodePlan, learner: LearnerState, steps: int) -> EpisodeResults:
        """Play the episodes of a plan with the policies of that step. An evaluation that selects
        the best seed sets the scores; another one sets them if there are none. The environments of
        the last evaluation of either kind stay open."""
        if plan not in self.runners:
            for other in [one for one in self.runners if one.seeds.stream == plan.seeds.stream]:
                self.runners.pop(other).close()
            self.runners[plan] = make_episode_runner(
                plan, self._source, self._env_workers, self._guard
            )
        policy = self._setup.algorithm.policy(learner.state)
        try:
            results = plan.by_policy(self.runners[plan].run(policy))
        except BaseException:  # also Ctrl-C: worker processes may be in the middle of a step
            self.runners.pop(plan).close()
            raise
        if plan.seeds.stream == SELECTION or self.scores is None:
            self.scores = np.where(is_frozen(learner.meter), np.nan, results.returns.mean(axis=1))
            self.scored_at = steps
        return results

    @property
    def best(self) -> int:
        """The index of the seed with the best score; 0 before there are scores."""
        if self.scores is None:
            return 0
        return int(np.nan_to_num(self.scores, nan=-np.inf).argmax())

    def describe_best(self, steps: int) -> dict[str, Any]:
        """Describe the policy of the best seed at that step. Its score is the mean return of the
        last evaluation; it is None if that was at another step."""
        score = np.nan
        if self.scores is not None and self.scored_at == steps:
            score = float(self.scores[self.best])
        seed = self._setup.seed + self.best
        return {"step": steps, "score": score if np.isfinite(score) else None, "seed": seed}

    def describe(self) -> dict[str, Any]:
        """Describe the scores for a manifest."""
        scores = None if self.scores is None else self.scores.tolist()
        return {"scores": scores, "scored_at": self.scored_at}

    def restore(self, scores: list[float] | None, scored_at: int | None) -> None:
        """Take over the scores of a manifest."""
        self.scores, self.scored_at = None if scores is None else np.array(scores), scored_at

    def close(self) -> None:
        for runner in self.runners.values():
            runner.close()
        self.runners.clear()


def summarize(results: EpisodeResults) -> dict[str, Any]:
    """Describe the results [seeds, episodes] of an evaluation. `success_rate` and `info`, the mean
    of each number, are there if the environments report them."""
    returns, _, described, infos = results
    single = len(returns) == 1
    found = summary(returns[0] if single else returns)
    rates, means = describe(() if infos is None else infos)
    if known := [rate for rate in rates if not np.isnan(rate)]:
        found["success_rate"] = float(np.mean(known))
    if means:
        found["info"] = KeyLimit().select(means)
    if described is not None:
        found["descriptor"] = described.mean(axis=(0, 1))
        found["descriptors"] = described[0] if single else described
    return found
