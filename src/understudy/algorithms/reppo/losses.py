"""The objectives of REPPO (Voelcker et al., "Relative Entropy Pathwise Policy Optimization", arXiv
2507.11019).

Continuous and discrete actions differ in one place: what a state is worth. For continuous actions
Q and log π are those of one sample, for discrete actions they are expectations over all choices.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, Shaped

from understudy.algorithms.rollouts import q_lambda_target
from understudy.networks.ensembles import evaluate_ensemble, q_of_action
from understudy.ops.densities import squashed_gaussian_sample
from understudy.ops.distributions import Categorical, Gaussian
from understudy.ops.divergences import categorical_kl, gaussian_kl
from understudy.types import Observation, Scalar, Trajectory

PerRow = Float[Array, " rows"]
Policy = Gaussian | Categorical  # the Gaussian is that before tanh


class Prepared(NamedTuple):
    """A rollout for the losses: rows in any order. With memory, `REPPO.prepare` returns
    [envs, time, …] in their place, so that minibatches have whole environments."""

    observation: Observation
    action: Shaped[Array, "rows *action"]
    target: PerRow
    old_policy: Policy  # that acted, in each row
    weight: PerRow  # 0 for rows without a step; its mean over the rollout is 1
    row: Int32[Array, " rows"]


def policy_of(actor: Any, observation: Observation) -> Policy:
    """Return π(·|s); for continuous actions the Gaussian before tanh."""
    policy = actor(observation)
    return policy if isinstance(policy, Categorical) else Gaussian(*policy)


def evaluate(
    policy: Policy,
    critic: Any,
    observation: Observation,
    noise: Float[Array, "rows action"] | None,
) -> tuple[PerRow, PerRow]:
    """Return Q(s, a) and log π(a|s) of the action that the noise makes, with gradients through the
    action. For discrete actions return the expectations of both; the second is −H(π(·|s))."""
    if isinstance(policy, Categorical):
        q = evaluate_ensemble(critic, observation)[0]
        return jnp.sum(policy.probabilities * q, axis=-1), -policy.entropy()
    assert noise is not None
    action, log_prob = squashed_gaussian_sample(policy.mean, policy.log_std, noise)
    return evaluate_ensemble(critic, observation, action)[0], log_prob


def critic_target(
    steps: Trajectory,
    next_q: Float[Array, "time envs"],
    next_log_prob: Float[Array, "time envs"],
    temperature: Scalar,
    trace_decay: Scalar,
) -> Float[Array, "time envs"]:
    """Q(λ) of the rewards with entropy: r − d·α·log π(a'|s') in place of r, and V(s') = Q(s', a'),
    where a' ~ π(s') is not the action that was taken.

    `discount` d is γ, and 0 where the task terminated; `trace_decay` is γ·λ."""
    entropy_bonus = -steps.discount * temperature * next_log_prob
    soft = steps._replace(reward=steps.reward + entropy_bonus)
    return q_lambda_target(soft, next_q, trace_decay)


def critic_loss(
    critic: Any, batch: Prepared, target: PerRow
) -> tuple[Scalar, Float[Array, "critics rows"]]:
    """½·(Q(s, a) − G)² of a scalar critic."""
    error = q_of_action(critic, batch.observation, batch.action) - target
    return jnp.mean(0.5 * batch.weight * error**2), error


def policy_kl(old: Policy, new: Policy) -> PerRow:
    """KL(π_old(·|s) ‖ π(·|s)), exact: tanh is a bijection and changes no KL."""
    if isinstance(old, Categorical):
        assert isinstance(new, Categorical)
        return categorical_kl(old.logits, new.logits)
    assert isinstance(new, Gaussian)
    return gaussian_kl(old.mean, old.log_std, new.mean, new.log_std)


def actor_loss(
    q: PerRow,
    log_prob: PerRow,
    kl: PerRow,
    weight: PerRow,
    values: dict[str, Scalar],
    kl_bound: Scalar,
) -> Scalar:
    """α·log π(a|s) − Q(s, a) in states where the KL is below the bound, β·KL in the others.
    `values` are α and β."""
    improve = values["temperature"] * log_prob - q
    return jnp.mean(weight * jnp.where(kl < kl_bound, improve, values["multiplier"] * kl))


def dual_loss(
    duals: dict[str, Scalar],
    log_prob: PerRow,
    kl: PerRow,
    weight: PerRow,
    target_entropy: Scalar,
    kl_bound: Scalar,
) -> Scalar:
    """α·(H(π) − H̄) + β·(bound − KL) for a given policy: descending it raises α while the entropy is
    below its target, and β while the mean KL is above its bound. `duals` are log α and log β."""
    excess = jnp.mean(weight * (-log_prob - target_entropy))
    short = jnp.mean(weight * (kl_bound - kl))
    return jnp.exp(duals["temperature"]) * excess + jnp.exp(duals["multiplier"]) * short
