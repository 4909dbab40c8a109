"""Kullback-Leibler divergences between policies, in closed form."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def gaussian_kls(
    mean_p: Float[Array, "*batch action"],
    std_p: Float[Array, "*batch action"],
    mean_q: Float[Array, "*batch action"],
    std_q: Float[Array, "*batch action"],
) -> tuple[Float[Array, "*batch action"], Float[Array, "*batch action"]]:
    """Return the KL of a change of the mean alone, and of the deviation alone.

    KL(N(μp, σp) ‖ N(μq, σp)) and KL(N(μp, σp) ‖ N(μp, σq)), per dimension: MPO bounds the two
    separately (Abdolmaleki et al., 2018, section 4.2).
    """
    kl_mean = 0.5 * ((mean_p - mean_q) / std_p) ** 2
    # The second is (e^{2d} - 1)/2 - d with d = log σp/σq. It is quadratic in a small d, and MPO
    # bounds it near 1e-6, where a difference of logarithms would be rounding error.
    excess = (std_p - std_q) / jnp.minimum(std_p, std_q)
    log_ratio = jnp.sign(excess) * jnp.log1p(jnp.abs(excess))
    return kl_mean, 0.5 * jnp.expm1(2.0 * log_ratio) - log_ratio


def gaussian_kl(
    mean_p: Float[Array, "*batch action"],
    log_std_p: Float[Array, "*#batch action"],
    mean_q: Float[Array, "*batch action"],
    log_std_q: Float[Array, "*#batch action"],
) -> Float[Array, "*batch"]:
    """KL(p ‖ q), summed over the dimensions of the action. It is also that of both after tanh: a
    bijection changes no KL."""
    log_ratio = log_std_p - log_std_q
    apart = (mean_p - mean_q) * jnp.exp(-log_std_q)
    return jnp.sum(0.5 * (jnp.expm1(2.0 * log_ratio) + apart**2) - log_ratio, axis=-1)


def categorical_kl(
    logits_p: Float[Array, "*batch choices"], logits_q: Float[Array, "*batch choices"]
) -> Float[Array, "*batch"]:
    """KL(p ‖ q). A choice that p excludes (logit -inf) contributes nothing."""
    log_p, log_q = jax.nn.log_softmax(logits_p), jax.nn.log_softmax(logits_q)
    surplus = jnp.where(jnp.isneginf(log_p), 0.0, log_p - log_q)
    return jnp.sum(jnp.exp(log_p) * surplus, axis=-1)
