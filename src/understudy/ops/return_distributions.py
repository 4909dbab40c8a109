"""Distributions of returns: what distributional critics predict, their targets and their losses.

A critic's outputs are the parameters of a distribution Z with E[Z] = Q. `Atoms` has fixed values
and learned probabilities; `Quantiles` has fixed probabilities and learned values.
"""

from dataclasses import dataclass
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@final
class Returns(NamedTuple):
    """A distribution of returns: values, and the probability of each."""

    value: Float[Array, "*#batch n"]
    probability: Float[Array, "*batch n"]

    @property
    def mean(self) -> Float[Array, "*batch"]:
        return jnp.sum(self.value * self.probability, axis=-1)

    def __sub__(self, cost: Float[Array, "*batch"]) -> "Returns":
        """Return the distribution of Z − cost."""
        return Returns(self.value - cost[..., None], self.probability)


def expected(
    probability: Float[Array, "*batch choices"], value: Float[Array, "*batch choices"] | Returns
) -> Float[Array, "*batch"] | Returns:
    """Return Σ_a π(a)·x_a; of distributions of returns, their mixture with the weights π(a)."""
    if not isinstance(value, Returns):
        return jnp.sum(probability * value, axis=-1)
    joint = probability[..., None] * value.probability
    if value.value.ndim == 1:  # all choices have the same values
        return Returns(value.value, jnp.sum(joint, axis=-2))
    return Returns(*(x.reshape(*x.shape[:-2], -1) for x in (value.value, joint)))


@final
@dataclass(frozen=True)
class Atoms:
    """A categorical distribution over `size` evenly spaced returns from `low` to `high`.

    Outputs are logits. (C51: Bellemare et al., "A Distributional Perspective on Reinforcement
    Learning", arXiv 1707.06887.)"""

    low: float
    high: float
    size: int
    sigma: float | None = None  # of HL-Gauss, in distances between atoms; None: C51's projection

    @property
    def values(self) -> Float[Array, " atoms"]:
        return jnp.linspace(self.low, self.high, self.size)

    @property
    def distance(self) -> float:
        """The distance between two atoms."""
        return (self.high - self.low) / (self.size - 1)

    def mean(self, logits: Float[Array, "*batch atoms"]) -> Float[Array, "*batch"]:
        """Q = Σ_i z_i·p_i."""
        return jnp.sum(jax.nn.softmax(logits) * self.values, axis=-1)

    def pessimistic(self, logits: Float[Array, "critics *batch atoms"]) -> Returns:
        """Return the whole distribution of the critic with the lowest mean."""
        lowest = jnp.argmin(self.mean(logits), axis=0)[None, ..., None]
        chosen = jnp.take_along_axis(logits, lowest, axis=0)[0]
        return Returns(self.values, jax.nn.softmax(chosen))

    def loss(
        self, logits: Float[Array, "critics batch atoms"], target: Returns
    ) -> Float[Array, "critics batch"]:
        """The cross-entropy −Σ_i m_i·log p_i, where m is the target on the atoms."""
        return -jnp.sum(self.project(target) * jax.nn.log_softmax(logits), axis=-1)

    def project(self, target: Returns) -> Float[Array, "batch atoms"]:
        """Return the probabilities of the atoms that stand for the target."""
        if self.sigma is not None:
            return self._gaussian_histogram(target.mean)
        return self._shared_between_neighbors(target)

    def _shared_between_neighbors(self, target: Returns) -> Float[Array, "batch atoms"]:
        """C51's eq. 7: m_i = Σ_j p_j·[1 − |v_j − z_i|/Δz] in [0, 1], with v_j clipped to the
        outer atoms. Each value divides its probability between its two nearest atoms."""
        value = jnp.clip(target.value, self.low, self.high)[..., None]
        share = jnp.clip(1.0 - jnp.abs(value - self.values) / self.distance, 0.0, 1.0)
        return jnp.sum(target.probability[..., None] * share, axis=-2)

    def _gaussian_histogram(self, mean: Float[Array, " batch"]) -> Float[Array, "batch atoms"]:
        """HL-Gauss (Farebrother et al., "Stop Regressing", arXiv 2403.03950): m_i is the
        probability of a Gaussian around the target's mean within ±Δz/2 of z_i, normalized."""
        assert self.sigma is not None
        center = jnp.clip(mean, self.low, self.high)[:, None]
        edges = self.low + self.distance * (jnp.arange(self.size + 1) - 0.5)
        below = jax.scipy.stats.norm.cdf(edges, center, self.sigma * self.distance)
        return jnp.diff(below, axis=-1) / (below[:, -1:] - below[:, :1])


@final
@dataclass(frozen=True)
class Quantiles:
    """`size` returns of equal probability: the quantiles (2i − 1)/2N, which are the outputs.

    (QR-DQN: Dabney et al., "Distributional Reinforcement Learning with Quantile Regression", arXiv
    1710.10044. TQC: Kuznetsov et al., "Controlling Overestimation Bias with Truncated Mixture of
    Continuous Distributional Quantile Critics", arXiv 2005.04269.)"""

    size: int
    dropped: int = 0  # per critic, by targets

    def mean(self, quantiles: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
        """Q = Σ_i θ_i/N."""
        return jnp.mean(quantiles, axis=-1)

    def pessimistic(self, quantiles: Float[Array, "critics *batch n"]) -> Returns:
        """TQC's truncation: sort the quantiles of all critics together, drop the largest ones."""
        pooled = jnp.moveaxis(quantiles, 0, -2)
        pooled = jnp.sort(pooled.reshape(*pooled.shape[:-2], -1), axis=-1)
        kept = pooled[..., : len(quantiles) * (self.size - self.dropped)]
        return Returns(kept, jnp.full(kept.shape, 1.0 / kept.shape[-1]))

    def loss(
        self, quantiles: Float[Array, "critics batch n"], target: Returns
    ) -> Float[Array, "critics batch"]:
        """QR-DQN's eq. 10: the mean over i of Σ_j p_j·|τ_i − 1{u < 0}|·L(u), where
        u = v_j − θ_i and L is Huber's loss with κ = 1."""
        error = target.value[..., None, :] - quantiles[..., None]
        level = (jnp.arange(self.size)[:, None] + 0.5) / self.size
        cost = jnp.abs(level - (error < 0.0)) * huber(error)
        return jnp.mean(jnp.sum(target.probability[..., None, :] * cost, axis=-1), axis=-1)


ReturnForm = Atoms | Quantiles


def huber(error: Float[Array, "..."]) -> Float[Array, "..."]:
    """Half the square within [−1, 1], beyond it |error| − ½: the gradient is at most 1."""
    size = jnp.abs(error)
    inner = jnp.minimum(size, 1.0)
    return inner * (size - 0.5 * inner)
