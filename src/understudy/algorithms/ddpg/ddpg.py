"""DDPG: the order of things. The maths is in losses.py."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from understudy.algorithms.aux_losses import add_terms
from understudy.algorithms.base import Algorithm, Aux
from understudy.algorithms.ddpg import losses
from understudy.algorithms.ddpg.config import DDPGConfig
from understudy.algorithms.gradients import (
    add_encoder_gradient,
    differentiate_actor,
    sample_critics,
    encode_for_actor,
    mean_over_steps,
)
from understudy.algorithms.normalization import normalize_observation
from understudy.algorithms.optim import Delays, Gradients, Optimizers, UpdateMask
from understudy.algorithms.train_state import TrainState
from understudy.networks import (
    DeterministicActor,
    select_critics,
    evaluate_ensemble,
    share_encoder,
    encode_shared,
)
from understudy.networks.build import make_actor, make_critics
from understudy.networks.normalizer import Statistics
from understudy.ops.exploration import ornstein_uhlenbeck
from understudy.types import Batch, Continuous, Key, Metrics, Observation, Scalar, Spec, Tree


class Params(NamedTuple):
    actor: Any
    critic: Any  # [critics, ...]


class Targets(NamedTuple):
    actor: Any
    critic: Any


class Policy(NamedTuple):
    actor: Any
    normalizer: Statistics | None  # of observations, if they are normalized
    exploration_noise: Scalar
    noise_theta: Scalar


@final
class DDPG(Algorithm):
    """Deep Deterministic Policy Gradient for continuous actions."""

    name = "ddpg"
    config_class = DDPGConfig
    supported_actions = (Continuous,)
    target_class = Targets
    config: DDPGConfig

    @property
    def optimizers(self) -> Optimizers:
        return Optimizers(
            self.config,
            learning_rates={"actor": "actor_learning_rate", "critic": "critic_learning_rate"},
        )

    @property
    def delays(self) -> Delays:
        return Delays(targets=self.config.target_update_interval)

    def init_params(self, spec: Spec, key: Key) -> tuple[Params, Key]:
        actor_key, critic_key, key = jax.random.split(key, 3)
        actor = make_actor(
            DeterministicActor,
            spec,
            self.config,
            self.networks,
            actor_key,
            share=self.config.share_encoder,
        )
        return Params(actor, make_critics(spec, self.config, self.networks, critic_key)), key

    def policy(self, state: TrainState) -> Policy:
        hyper = state.hyper
        return Policy(
            share_encoder(state.params.actor, state.params.critic),
            state.normalizer.observation,
            hyper["exploration_noise"],
            hyper["noise_theta"],
        )

    def init_noise(self, policy: Policy, num_envs: int) -> Tree:
        """Noise that lingers, with a standard deviation of 1; nothing for Gaussian noise."""
        if self.config.noise == "gaussian":
            return ()
        return jnp.zeros((num_envs, policy.actor.head.bias.shape[-1]))

    def choose(
        self,
        policy: Policy,
        noise: Tree,
        seen: Observation,
        first: Bool[Array, " envs"],
        key: Key,
        explore: bool,
    ) -> tuple[Float[Array, "envs action"], Tree, Metrics]:
        """Eq. 7. What lingers knows no scale: a standard deviation that moves counts at once."""
        action = policy.actor(seen)
        if explore:
            drawn = jax.random.normal(key, action.shape)
            if self.config.noise == "ornstein_uhlenbeck":
                drawn = noise = ornstein_uhlenbeck(noise, first, drawn, policy.noise_theta, 1.0)
            action = jnp.clip(action + policy.exploration_noise * drawn, -1.0, 1.0)
        return action, noise, {}

    def gradients(
        self, state: TrainState, batch: Batch, key: Key, mask: UpdateMask
    ) -> tuple[Gradients, Aux]:
        """All gradients at one and the same state: the actor's is taken at the current critic,
        before this update moves it."""
        addon_key, subset_key = jax.random.split(key)
        critics = sample_critics(state.targets.critic, self.config.critic_subset, subset_key)
        target_actor = share_encoder(state.targets.actor, state.targets.critic)
        then = encode_shared(state.targets.actor, critics, batch.next_observation)
        target = losses.critic_target(target_actor, critics, batch._replace(next_observation=then))
        differentiate = jax.value_and_grad(losses.critic_loss, has_aux=True)
        (critic_loss, error), critic_gradient = differentiate(state.params.critic, batch, target)

        looked_at = encode_for_actor(state, batch, self.config)

        def actor_objective(actor: Any) -> tuple[Scalar, Metrics]:
            loss = losses.actor_loss(actor, select_critics(state.params.critic, 0), looked_at)
            extra, addon_metrics = add_terms(self.loss_addons, actor, batch, addon_key)
            return loss + extra, {"actor_loss": loss + extra, **addon_metrics}

        (_, actor_metrics), actor_gradient, shared = differentiate_actor(
            actor_objective,
            state.params.actor,
            state.params.critic,
            self.config.actor_trains_encoder,
        )
        critic_gradient = add_encoder_gradient(critic_gradient, shared)
        metrics = {
            "critic_loss": critic_loss,
            "q_mean": mean_over_steps(target + error, batch.weight),
            **actor_metrics,
        }
        params = Params(actor_gradient, critic_gradient)
        return Gradients(params, mask), Aux(metrics, jnp.mean(jnp.abs(error), axis=0))

    def q_values(
        self, state: TrainState, observation: Array, action: Array
    ) -> Float[Array, "critics batch"]:
        observation = normalize_observation(state.normalizer.observation, observation)
        return evaluate_ensemble(state.params.critic, observation, action)
