"""The objectives of MPO (Abdolmaleki et al., "Maximum a Posteriori Policy Optimization", arXiv
1806.06920, whose equation numbers these are; the decoupled M-step is that of "Relative Entropy
Regularized Policy Iteration", arXiv 1812.02256).

Continuous and discrete actions differ in two places only: which actions are considered in a
state, and how the policy is fitted to the improved one.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.ensembles import q_of_action, reduced_return
from understudy.ops.distributions import Categorical, Gaussian
from understudy.ops.divergences import categorical_kl, gaussian_kls
from understudy.ops.duals import improved_weights, temperature_dual
from understudy.ops.return_distributions import Returns, expected
from understudy.ops.targets import Reduction, Target, bootstrapped, pessimistic
from understudy.types import Batch, Observation, Scalar

Weights = Float[Array, "batch candidates"]
Named = dict[str, Array]  # temperatures, multipliers, KLs, bounds


class Candidates(NamedTuple):
    """The actions considered in each state: samples of a policy, or all actions."""

    policy: Any  # Gaussian or Categorical
    action: Float[Array, "batch candidates action"] | None  # as sampled; None for all actions
    log_prior: Weights  # log of the weight of each under the policy
    estimate: Weights | Returns  # Q, or the distribution of returns of each

    @property
    def q(self) -> Weights:
        return self.estimate.mean if isinstance(self.estimate, Returns) else self.estimate

    @property
    def value(self) -> Float[Array, " batch"]:
        """E[Q(s, a)] under the policy; exact for all actions."""
        return jnp.sum(jnp.exp(self.log_prior) * self.q, axis=-1)


def sample_candidates(
    policy: Gaussian,
    critics: Any,
    observation: Observation,
    noise: Float[Array, "batch candidates action"],
    reduction: Reduction = pessimistic,
) -> Candidates:
    """Sample a Gaussian. Samples may leave the bounds; critics evaluate the clipped actions."""
    action = policy.mean[:, None] + jnp.exp(policy.log_std)[:, None] * noise
    clipped = jnp.clip(action, -1.0, 1.0)
    estimate = reduced_return(critics, observation, clipped, reduction)
    log_prior = jnp.full(action.shape[:2], -math.log(noise.shape[1]))
    return Candidates(policy, action, log_prior, estimate)


def all_candidates(
    policy: Categorical, critics: Any, observation: Observation, reduction: Reduction = pessimistic
) -> Candidates:
    """Take every action, weighted by its probability."""
    estimate = reduced_return(critics, observation, None, reduction)
    return Candidates(policy, None, policy.log_probabilities, estimate)


def critic_target(batch: Batch, following: Candidates) -> Target:
    """r + γ·E[Q̄(s', a')] with a' ~ π̄(s')."""
    next_value = expected(jnp.exp(following.log_prior), following.estimate)
    return bootstrapped(batch.reward, batch.discount, next_value)


def critic_loss(
    critic: Any, batch: Batch, target: Float[Array, " batch"]
) -> tuple[Scalar, Float[Array, "critics batch"]]:
    """(Q(s, a) − target)², summed over critics, averaged over the batch."""
    error = q_of_action(critic, batch.observation, batch.action) - target
    return jnp.sum(jnp.mean(batch.weight * error**2, axis=-1)), error


def objectives(candidates: Candidates, penalize: bool) -> dict[str, Weights]:
    """Return what to maximize, under the names of the temperatures: Q, and if actions are penalized
    −‖a − clip(a, −1, 1)‖, minus the distance of a sample from the bounds."""
    if not penalize or candidates.action is None:
        return {"temperature": candidates.q}
    beyond = candidates.action - jnp.clip(candidates.action, -1.0, 1.0)
    return {
        "temperature": candidates.q,
        "penalty_temperature": -jnp.sqrt(jnp.sum(beyond**2, axis=-1)),
    }


def improve(objectives: dict[str, Weights], temperature: Named, log_prior: Weights) -> Weights:
    """E-step, eq. 8: the improved policy on the candidates, ∝ π̄(a|s)·exp(Q̄(s, a)/η); the sum of
    these for several objectives."""
    each = [improved_weights(q, temperature[name], log_prior) for name, q in objectives.items()]
    return jnp.sum(jnp.stack(each), axis=0)


def temperature_loss(
    temperature: Named,
    objectives: dict[str, Weights],
    epsilon: Named,
    log_prior: Weights,
    weight: Float[Array, " batch"],
) -> Scalar:
    """Eq. 9, the dual of the E-step's bound: its minimum is the temperature for eq. 8."""
    each = [
        temperature_dual(q, temperature[name], epsilon[name], log_prior, weight)
        for name, q in objectives.items()
    ]
    return jnp.sum(jnp.stack(each))


def fit_gaussian(
    policy: Gaussian, candidates: Candidates, improved: Weights, weight: Float[Array, " batch"]
) -> tuple[Scalar, Named]:
    """M-step, eq. 12, decoupled: −Σ q·log N(a; μ, σ̄) moves the mean alone, and −Σ q·log N(a; μ̄, σ)
    the deviation alone, which therefore cannot collapse early. Also returns the KL of each from
    the old policy, per dimension of the action."""
    old, action = candidates.policy, candidates.action
    assert action is not None

    def log_prob(mean: Array, log_std: Array) -> Weights:
        return jax.vmap(Gaussian(mean, log_std).log_prob, 1, 1)(action)

    both = log_prob(policy.mean, old.log_std) + log_prob(old.mean, policy.log_std)
    loss = -jnp.mean(weight * jnp.sum(improved * both, axis=-1))
    kls = gaussian_kls(old.mean, jnp.exp(old.log_std), policy.mean, jnp.exp(policy.log_std))
    kl_mean, kl_var = (jnp.mean(weight[:, None] * kl, axis=0) for kl in kls)
    return loss, {"kl_mean": kl_mean, "kl_var": kl_var}


def fit_categorical(
    policy: Categorical, candidates: Candidates, improved: Weights, weight: Float[Array, " batch"]
) -> tuple[Scalar, Named]:
    """M-step, eq. 12: the cross-entropy −Σ q·log π. Also returns KL(π̄ ‖ π)."""
    loss = -jnp.mean(weight * jnp.sum(improved * policy.log_probabilities, axis=-1))
    kl = categorical_kl(candidates.policy.logits, policy.logits)
    return loss, {"kl": jnp.mean(weight * kl)}


def weighted_sum(costs: Named, multipliers: Named) -> Scalar:
    """Σ α·cost. With KLs as costs it is the penalty on the policy's step."""
    return jnp.sum(jnp.stack([jnp.sum(multipliers[name] * cost) for name, cost in costs.items()]))


def multiplier_loss(multipliers: Named, kls: Named, epsilon: Named) -> Scalar:
    """Σ α·(ε − KL) for given KLs: descending it raises the multiplier of a bound that is violated
    and lowers that of one that holds."""
    return weighted_sum({name: epsilon[name] - kl for name, kl in kls.items()}, multipliers)
