"""Distributions over actions, for any leading batch axes.

Each is a tuple of arrays, so it passes through `jit` and `vmap`. Each has `mode`, `sample`,
`log_prob` and `entropy`.
"""

from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.ops.densities import gaussian_log_prob
from understudy.types import Key

_ENTROPY_OF_STANDARD_NORMAL = 1.4189385332046727  # (1 + log 2π) / 2


@final
class Gaussian(NamedTuple):
    """Independent normals. `log_std` may lack leading axes if it does not depend on the state."""

    mean: Float[Array, "*batch action"]
    log_std: Float[Array, "*#batch action"]

    def mode(self) -> Float[Array, "*batch action"]:
        return self.mean

    def sample(self, key: Key) -> Float[Array, "*batch action"]:
        """Draw a reparameterized sample: it has gradients for mean and deviation."""
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        return self.mean + jnp.exp(self.log_std) * noise

    def log_prob(self, action: Float[Array, "*batch action"]) -> Float[Array, "*batch"]:
        return gaussian_log_prob(action, self.mean, self._own_log_std())

    def entropy(self) -> Float[Array, "*batch"]:
        return jnp.sum(_ENTROPY_OF_STANDARD_NORMAL + self._own_log_std(), axis=-1)

    def _own_log_std(self) -> Array:
        return jnp.broadcast_to(self.log_std, self.mean.shape)


@final
class Categorical(NamedTuple):
    """One choice, counted from 0. A logit of -inf excludes its choice."""

    logits: Float[Array, "*batch choices"]

    @property
    def log_probabilities(self) -> Float[Array, "*batch choices"]:
        return jax.nn.log_softmax(self.logits)

    @property
    def probabilities(self) -> Float[Array, "*batch choices"]:
        return jax.nn.softmax(self.logits)

    def mode(self) -> Int32[Array, "*batch"]:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def sample(self, key: Key) -> Int32[Array, "*batch"]:
        return jax.random.categorical(key, self.logits).astype(jnp.int32)

    def log_prob(self, action: Int32[Array, "*batch"]) -> Float[Array, "*batch"]:
        chosen = jnp.take_along_axis(self.log_probabilities, action[..., None], axis=-1)
        return chosen[..., 0]

    def entropy(self) -> Float[Array, "*batch"]:
        log_p = self.log_probabilities
        # p·log p → 0 as p → 0, which 0 · -inf is not.
        return -jnp.sum(jnp.exp(log_p) * jnp.where(jnp.isneginf(log_p), 0.0, log_p), axis=-1)


@final
class MultiCategorical(NamedTuple):
    """Several independent choices at once, each with its own number of options."""

    logits: tuple[Array, ...]  # one [*batch, choices] per factor

    @property
    def factors(self) -> tuple[Categorical, ...]:
        return tuple(Categorical(logits) for logits in self.logits)

    def mode(self) -> Int32[Array, "*batch factors"]:
        return jnp.stack([factor.mode() for factor in self.factors], axis=-1)

    def sample(self, key: Key) -> Int32[Array, "*batch factors"]:
        keys = jax.random.split(key, len(self.logits))
        drawn = [factor.sample(own) for factor, own in zip(self.factors, keys, strict=True)]
        return jnp.stack(drawn, axis=-1)

    def log_prob(self, action: Int32[Array, "*batch factors"]) -> Float[Array, "*batch"]:
        chosen = jnp.moveaxis(action, -1, 0)
        parts = [factor.log_prob(a) for factor, a in zip(self.factors, chosen, strict=True)]
        return jnp.sum(jnp.stack(parts), axis=0)

    def entropy(self) -> Float[Array, "*batch"]:
        return jnp.sum(jnp.stack([factor.entropy() for factor in self.factors]), axis=0)
