"""An algorithm of a user's own, outside the library: clipped policy gradients.

It is on-policy, goes through each rollout several times, and learns from the log-probabilities that
acting has stored.
"""

import understudy as us
from tests.algorithms.clipped_policy.clipped_policy import ClippedPolicy
from tests.algorithms.clipped_policy.config import ClippedPolicyConfig


class ClippedAgent(us.Agent):
    algorithm_class = ClippedPolicy


__all__ = ["ClippedAgent", "ClippedPolicy", "ClippedPolicyConfig"]
