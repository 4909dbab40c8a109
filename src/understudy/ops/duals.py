"""MPO's E-step: the best policy within a KL ball around the prior, and its temperature.

Of all policies q with KL(q ‖ prior) ≤ ε, the one of highest expected Q is prior · exp(Q/η),
normalized; the temperature η is the multiplier of the bound, found by descending a convex dual
(Abdolmaleki et al., 2018, appendix D).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.types import Scalar


def temperature_dual(
    q: Float[Array, "batch samples"],
    temperature: Scalar,
    epsilon: Scalar | float,
    log_prior: Float[Array, "batch samples"],
    weight: Float[Array, " batch"],
) -> Scalar:
    """η·ε + η·mean(weight · log Σ_j prior_j · exp(q_j/η)); at its minimum the mean KL is ε.

    For actions drawn from the prior, `log_prior` is -log(samples); if `samples` are all actions, it
    is the prior's log-probability.
    """
    soft_maximum = jax.nn.logsumexp(log_prior + q / temperature, axis=-1)
    return temperature * (epsilon + jnp.mean(weight * soft_maximum))


def improved_weights(
    q: Float[Array, "batch samples"],
    temperature: Scalar,
    log_prior: Float[Array, "batch samples"],
) -> Float[Array, "batch samples"]:
    """Return the improved policy on the samples: prior · exp(q/η), with rows that sum to one.

    It is a target for the M-step: callers stop its gradient.
    """
    return jax.nn.softmax(log_prior + q / temperature, axis=-1)
