"""Loss add-ons: users' functions that add a term to the actor's loss, and two built-in ones.

An add-on is a function `(actor, batch, key) -> (scalar, metrics)`. Its batch is that of the losses:
observations are normalized if the config says so.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.algorithms.base import LossAddon
from understudy.networks.encoders import SharedEncoder
from understudy.networks.heads import DeterministicActor, SquashedGaussianActor
from understudy.ops.distributions import Categorical, Gaussian, MultiCategorical
from understudy.ops.divergences import categorical_kl, gaussian_kl
from understudy.types import ConfigError, Key, Metrics, Observation, Scalar


def add_terms(
    addons: tuple[LossAddon, ...], actor: Any, batch: Any, key: Key
) -> tuple[Scalar, Metrics]:
    """Return the sum of the users' terms for the actor's loss, and their metrics as `addon/…`."""
    total, metrics = jnp.float32(0.0), {}
    for place, addon in enumerate(addons):
        name = getattr(addon, "__name__", f"addon_{place}")
        answer = addon(actor, batch, jax.random.fold_in(key, place))
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise ConfigError(f"loss add-on '{name}' must return (a scalar, a dict of metrics)")
        term, own = answer
        for what, value in {"a term": term, **own}.items():
            if jnp.shape(value) != ():
                shape = jnp.shape(value)
                raise ConfigError(f"loss add-on '{name}': {what} must be a scalar, got {shape}")
        total = total + term
        metrics |= {f"addon/{key_}": jnp.float32(value) for key_, value in own.items()}
    return total, metrics


def kl_to_reference(reference: Any, coefficient: int | float) -> LossAddon:
    """Keep the policy near `reference`, an actor of the same class, such as another agent's: add
    coefficient · KL(policy ‖ reference). If the actor shares its critics' encoder, pass
    `understudy.networks.share_encoder(actor, critic)`."""
    if isinstance(reference.observation_encoder, SharedEncoder):
        raise ConfigError(
            "kl_to_reference: this actor sees by its critics' encoder or memory; give "
            "understudy.networks.share_encoder(actor, critic)"
        )

    def reference_kl(actor: Any, batch: Any, key: Key) -> tuple[Scalar, Metrics]:
        fixed = jax.lax.stop_gradient(_distribution(reference, batch.observation))
        kl = _kl(_distribution(actor, batch.observation), fixed)
        average = jnp.mean(batch.weight * kl)
        return coefficient * average, {"reference_kl": average}

    return reference_kl


def action_penalty(coefficient: int | float) -> LossAddon:
    """Prefer small actions: add coefficient · |mode of the policy|², in normalized units."""

    def action_magnitude(actor: Any, batch: Any, key: Key) -> tuple[Scalar, Metrics]:
        action = actor.mode(batch.observation)
        if not jnp.issubdtype(action.dtype, jnp.floating):
            raise ConfigError("action_penalty needs continuous actions")
        average = jnp.mean(batch.weight * jnp.sum(action**2, axis=-1))
        return coefficient * average, {"action_square": average}

    return action_magnitude


def _distribution(
    actor: Any, observation: Observation
) -> Gaussian | Categorical | MultiCategorical:
    """Return the actor's distribution, before tanh if there is one: tanh does not change a KL."""
    if isinstance(actor, DeterministicActor):
        raise ConfigError("kl_to_reference needs a policy that is random: this one is not")
    distribution = actor(observation)
    return Gaussian(*distribution) if isinstance(actor, SquashedGaussianActor) else distribution


def _kl(ours: Any, theirs: Any) -> Float[Array, " batch"]:
    if isinstance(ours, Gaussian):
        return gaussian_kl(*ours, *theirs)
    if isinstance(ours, Categorical):
        return categorical_kl(ours.logits, theirs.logits)
    factors = zip(ours.logits, theirs.logits, strict=True)
    return jnp.sum(jnp.stack([categorical_kl(p, q) for p, q in factors]), axis=0)
