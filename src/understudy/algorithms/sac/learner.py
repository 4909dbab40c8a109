"""SAC: the order of things. The maths is in losses.py."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms.base import (
    Algorithm,
    Aux,
    Index,
    Replay,
    adam,
    add_terms,
    descend,
    every,
    initial_hyper,
    learning_rate,
    when,
)
from understudy.algorithms.sac import losses
from understudy.algorithms.sac.config import SACConfig
from understudy.math.densities import (
    row_normals,
    squashed_gaussian_log_prob,
    squashed_gaussian_sample,
)
from understudy.math.targets import polyak
from understudy.nets import SquashedGaussianActor, evaluate_ensemble
from understudy.nets.build import make_actor, make_critics
from understudy.types import Batch, Continuous, Key, Metrics, Scalar, Spec, Tree

SMALLEST_ENTROPY_COEFF = 1e-8  # where a directly learned temperature is held above zero


class State(NamedTuple):
    actor: Any
    critic: Any  # [critics, ...]
    target_critic: Any
    temperature: Scalar  # log α, or α itself (use_log_entropy=False)
    actor_moments: Tree
    critic_moments: Tree
    temperature_moments: Tree
    hyper: dict[str, Scalar]
    updates: Int32[Array, ""]
    key: Key


class Policy(NamedTuple):
    actor: Any


class Due(NamedTuple):
    targets: Bool[Array, ""] | bool


class Gradients(NamedTuple):
    actor: Any
    critic: Any
    temperature: Scalar
    due: Due


@final
class SAC(Algorithm):
    """Soft Actor-Critic for continuous actions."""

    name = "sac"
    config_class = SACConfig
    supported_actions = (Continuous,)
    config: SACConfig

    @property
    def appetite(self) -> Replay:
        return self.config.appetite

    def init(self, spec: Spec, key: Key) -> State:
        actor_key, critic_key, key = jax.random.split(key, 3)
        actor = make_actor(SquashedGaussianActor, spec, self.config, self.networks, actor_key)
        critic = make_critics(spec, self.config, self.networks, critic_key)
        start = jnp.float32(self.config.initial_entropy_coeff)
        temperature = jnp.log(start) if self.config.use_log_entropy else start
        optimiser = adam(self.config.max_grad_norm)
        hyper = initial_hyper(self.config)
        hyper.setdefault("target_entropy", jnp.float32(-spec.action.size))
        return State(
            actor=actor,
            critic=critic,
            target_critic=jax.tree.map(jnp.copy, critic),
            temperature=temperature,
            actor_moments=optimiser.init(actor),
            critic_moments=optimiser.init(critic),
            temperature_moments=adam(None).init(temperature),
            hyper=hyper,
            updates=jnp.int32(0),
            key=key,
        )

    def policy(self, state: State) -> Policy:
        return Policy(state.actor)

    def act(
        self,
        policy: Policy,
        memory: Tree,
        observation: Float[Array, "envs observation"],
        first: Bool[Array, " envs"],
        key: Key,
        explore: bool,
    ) -> tuple[Float[Array, "envs action"], Tree, Metrics]:
        mean, log_std = policy.actor(observation)
        if not explore:
            return jnp.tanh(mean), memory, {}
        noise = jax.random.normal(key, mean.shape)
        action, log_prob = squashed_gaussian_sample(mean, log_std, noise)
        return action, memory, {"log_prob": log_prob}

    @property
    def due_period(self) -> int:
        return self.config.target_update_interval

    def due(self, index: Index) -> Due:
        return Due(targets=every(index, self.config.target_update_interval))

    def gradients(self, state: State, batch: Batch, key: Key, due: Due) -> tuple[Gradients, Aux]:
        """All gradients at one and the same state: the actor's is taken at the current critic,
        before this update moves it."""
        noise_key, addon_key = jax.random.split(key)
        noise = row_normals(noise_key, batch.row, 2 * batch.action.shape[-1])
        actor_noise, target_noise = jnp.split(noise, 2, axis=-1)
        coeff = self.entropy_coeff(state)

        target = losses.critic_target(state.actor, state.target_critic, batch, coeff, target_noise)
        differentiate = jax.value_and_grad(losses.critic_loss, has_aux=True)
        (critic_loss, error), critic_gradient = differentiate(state.critic, batch, target)

        def actor_objective(actor: Any) -> tuple[Scalar, tuple[Array, Metrics]]:
            loss, log_prob = losses.actor_loss(actor, state.critic, batch, coeff, actor_noise)
            extra, addon_metrics = add_terms(self.loss_addons, actor, batch, addon_key)
            return loss + extra, (log_prob, addon_metrics)

        differentiate = jax.value_and_grad(actor_objective, has_aux=True)
        (actor_loss, (log_prob, addon_metrics)), actor_gradient = differentiate(state.actor)
        entropy_loss, temperature_gradient = jax.value_and_grad(losses.entropy_loss)(
            state.temperature, log_prob, state.hyper["target_entropy"]
        )
        metrics = {
            "actor_loss": actor_loss,
            "critic_loss": critic_loss,
            "ent_coef": coeff,
            "entropy": -jnp.mean(log_prob),
            "q_mean": jnp.mean(target + error),
            **addon_metrics,
        }
        if self.config.entropy_coeff is None:
            metrics["ent_coef_loss"] = entropy_loss
        gradients = Gradients(actor_gradient, critic_gradient, temperature_gradient, due)
        return gradients, Aux(metrics, jnp.mean(jnp.abs(error), axis=0))

    def apply(self, state: State, gradients: Gradients) -> State:
        optimiser = adam(self.config.max_grad_norm)
        rate = {name: learning_rate(state.hyper, name) for name in ("actor", "critic", "entropy")}
        actor, actor_moments = descend(
            optimiser, gradients.actor, state.actor_moments, state.actor, rate["actor"]
        )
        critic, critic_moments = descend(
            optimiser, gradients.critic, state.critic_moments, state.critic, rate["critic"]
        )
        target_critic = when(
            gradients.due.targets,
            lambda: polyak(state.target_critic, critic, state.hyper["tau"]),
            lambda: state.target_critic,
        )
        temperature, temperature_moments = state.temperature, state.temperature_moments
        if self.config.entropy_coeff is None:
            temperature, temperature_moments = descend(
                adam(None), gradients.temperature, temperature_moments, temperature, rate["entropy"]
            )
            if not self.config.use_log_entropy:
                temperature = jnp.maximum(temperature, SMALLEST_ENTROPY_COEFF)
        return state._replace(
            actor=actor,
            critic=critic,
            target_critic=target_critic,
            temperature=temperature,
            actor_moments=actor_moments,
            critic_moments=critic_moments,
            temperature_moments=temperature_moments,
            updates=state.updates + 1,
        )

    def entropy_coeff(self, state: State) -> Scalar:
        """The temperature α of this moment, fixed or learned."""
        if self.config.entropy_coeff is not None:
            return state.hyper["entropy_coeff"]
        return jnp.exp(state.temperature) if self.config.use_log_entropy else state.temperature

    def q_values(
        self, state: State, observation: Array, action: Array
    ) -> Float[Array, "critics batch"]:
        return evaluate_ensemble(state.critic, observation, action)

    def log_prob(self, state: State, observation: Array, action: Array) -> Float[Array, " batch"]:
        return squashed_gaussian_log_prob(action, *state.actor(observation))
