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

from understudy.networks import evaluate_ensemble, encode
from understudy.ops.distributions import Categorical, Gaussian
from understudy.ops.divergences import categorical_kl, gaussian_kls
from understudy.ops.duals import improved_weights, temperature_dual
from understudy.ops.targets import bootstrapped, pessimistic
from understudy.types import Batch, Observation, Scalar

Weights = Float[Array, "batch options"]
Named = dict[str, Array]  # temperatures, multipliers, KLs, bounds


class Options(NamedTuple):
    """The actions considered in each state: draws of a policy, or all there are."""

    policy: Any  # Gaussian or Categorical
    action: Float[Array, "batch options action"] | None  # as drawn; None where all are there
    log_prior: Weights  # log of how much each counts under the policy
    q: Weights

    @property
    def value(self) -> Float[Array, " batch"]:
        """E[Q(s, a)] under the policy; exact where all actions are there."""
        return jnp.sum(jnp.exp(self.log_prior) * self.q, axis=-1)


def drawn_options(
    policy: Gaussian,
    critics: Any,
    observation: Observation,
    noise: Float[Array, "batch options action"],
) -> Options:
    """Draws of a Gaussian. They may leave the bounds; critics judge what would be done."""
    action = policy.mean[:, None] + jnp.exp(policy.log_std)[:, None] * noise
    count = noise.shape[1]
    seen = jax.tree.map(
        lambda x: jnp.repeat(x[:, None], count, axis=1), encode(critics, observation)
    )
    q = pessimistic(evaluate_ensemble(critics, seen, jnp.clip(action, -1.0, 1.0)))
    return Options(policy, action, jnp.full(q.shape, -math.log(count)), q)


def all_options(policy: Categorical, critics: Any, observation: Observation) -> Options:
    """Every action there is, each counting by its probability."""
    q = pessimistic(evaluate_ensemble(critics, observation))
    return Options(policy, None, policy.log_probabilities, q)


def critic_target(batch: Batch, following: Options) -> Float[Array, " batch"]:
    """r + γ·E[Q̄(s', a')] with a' ~ π̄(s')."""
    return bootstrapped(batch.reward, batch.discount, following.value)


def q_values(critic: Any, observation: Observation, action: Array) -> Float[Array, "critics batch"]:
    if jnp.issubdtype(action.dtype, jnp.floating):
        return evaluate_ensemble(critic, observation, action)
    return evaluate_ensemble(critic, observation)[:, jnp.arange(len(action)), action]


def critic_loss(
    critic: Any, batch: Batch, target: Float[Array, " batch"]
) -> tuple[Scalar, Float[Array, "critics batch"]]:
    """(Q(s, a) − target)², summed over critics, averaged over the batch."""
    error = q_values(critic, batch.observation, batch.action) - target
    return jnp.sum(jnp.mean(batch.weight * error**2, axis=-1)), error


def objectives(options: Options, penalize: bool) -> dict[str, Weights]:
    """What to improve, by the temperature of each: Q, and where actions are penalized
    −‖a − clip(a, −1, 1)‖, how little a draw leaves the bounds."""
    if not penalize or options.action is None:
        return {"temperature": options.q}
    beyond = options.action - jnp.clip(options.action, -1.0, 1.0)
    return {
        "temperature": options.q,
        "penalty_temperature": -jnp.sqrt(jnp.sum(beyond**2, axis=-1)),
    }


def improve(wanted: dict[str, Weights], temperature: Named, log_prior: Weights) -> Weights:
    """E-step, eq. 8: the improved policy on its options, ∝ π̄(a|s)·exp(Q̄(s, a)/η), and the sum of
    these where there are several objectives."""
    each = [improved_weights(q, temperature[name], log_prior) for name, q in wanted.items()]
    return jnp.sum(jnp.stack(each), axis=0)


def temperature_loss(
    temperature: Named,
    wanted: dict[str, Weights],
    epsilon: Named,
    log_prior: Weights,
    weight: Float[Array, " batch"],
) -> Scalar:
    """Eq. 9, the dual of the E-step's bound: least at the temperature that eq. 8 needs."""
    each = [
        temperature_dual(q, temperature[name], epsilon[name], log_prior, weight)
        for name, q in wanted.items()
    ]
    return jnp.sum(jnp.stack(each))


def fit_gaussian(
    policy: Gaussian, options: Options, improved: Weights, weight: Float[Array, " batch"]
) -> tuple[Scalar, Named]:
    """M-step, eq. 12, decoupled: −Σ q·log N(a; μ, σ̄) moves the mean alone and −Σ q·log N(a; μ̄, σ)
    the deviation alone, which so cannot collapse before the mean has arrived. Also the KL of each
    from the old policy, per dimension of the action."""
    old, action = options.policy, options.action
    assert action is not None

    def log_prob(mean: Array, log_std: Array) -> Weights:
        return jax.vmap(Gaussian(mean, log_std).log_prob, 1, 1)(action)

    both = log_prob(policy.mean, old.log_std) + log_prob(old.mean, policy.log_std)
    loss = -jnp.mean(weight * jnp.sum(improved * both, axis=-1))
    kls = gaussian_kls(old.mean, jnp.exp(old.log_std), policy.mean, jnp.exp(policy.log_std))
    kl_mean, kl_var = (jnp.mean(weight[:, None] * kl, axis=0) for kl in kls)
    return loss, {"kl_mean": kl_mean, "kl_var": kl_var}


def fit_categorical(
    policy: Categorical, options: Options, improved: Weights, weight: Float[Array, " batch"]
) -> tuple[Scalar, Named]:
    """M-step, eq. 12: the cross-entropy −Σ q·log π, and KL(π̄ ‖ π)."""
    loss = -jnp.mean(weight * jnp.sum(improved * policy.log_probabilities, axis=-1))
    kl = categorical_kl(options.policy.logits, policy.logits)
    return loss, {"kl": jnp.mean(weight * kl)}


def priced(costs: Named, multipliers: Named) -> Scalar:
    """Σ α·cost: what the policy pays for its step, with KLs for costs."""
    return jnp.sum(jnp.stack([jnp.sum(multipliers[name] * cost) for name, cost in costs.items()]))


def multiplier_loss(multipliers: Named, kls: Named, epsilon: Named) -> Scalar:
    """Σ α·(ε − KL), the KLs given: descending it raises the multiplier of a bound that is broken
    and lowers that of one that is kept."""
    return priced({name: epsilon[name] - kl for name, kl in kls.items()}, multipliers)
