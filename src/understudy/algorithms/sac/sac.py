"""SAC: the order of things. The maths is in losses.py."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from understudy.algorithms.aux_losses import add_terms
from understudy.algorithms.base import Algorithm, Aux
from understudy.algorithms.gradients import (
    add_encoder_gradient,
    differentiate_actor,
    sample_critics,
    encode_for_actor,
    mean_over_steps,
    unless_delayed,
)
from understudy.algorithms.normalization import normalize_observation
from understudy.algorithms.optim import Delays, Gradients, Optimizers, UpdateMask
from understudy.algorithms.sac import losses
from understudy.algorithms.sac.config import SACConfig
from understudy.algorithms.train_state import TrainState
from understudy.networks import CategoricalActor, SquashedGaussianActor, share_encoder
from understudy.networks.build import make_actor, make_critics, make_q_values
from understudy.networks.normalizer import Statistics
from understudy.ops.densities import (
    row_normals,
    squashed_gaussian_log_prob,
    squashed_gaussian_sample,
)
from understudy.ops.targets import pessimistic
from understudy.types import (
    Action,
    Batch,
    Continuous,
    Discrete,
    Key,
    Metrics,
    Observation,
    Scalar,
    Spec,
    Tree,
)

SMALLEST_TEMPERATURE = 1e-8  # where a directly learned temperature is held above zero


class Params(NamedTuple):
    actor: Any
    critic: Any  # [critics, ...]
    temperature: Scalar  # log α, or α itself (use_log_temperature=False)


class Targets(NamedTuple):
    critic: Any


class Policy(NamedTuple):
    actor: Any
    normalizer: Statistics | None  # of observations, if they are normalized


@final
class SAC(Algorithm):
    """Soft Actor-Critic, for continuous and for discrete actions."""

    name = "sac"
    config_class = SACConfig
    supported_actions = (Continuous, Discrete)
    target_class = Targets
    config: SACConfig

    @property
    def optimizers(self) -> Optimizers:
        rates = {"actor": "actor_learning_rate", "critic": "critic_learning_rate"}
        if self.config.temperature is None:
            rates["temperature"] = "temperature_learning_rate"
        positive = {} if self.config.use_log_temperature else {"temperature": _keep_positive}
        return Optimizers(
            self.config,
            learning_rates=rates,
            delayed=("actor", "temperature"),
            numbers=("temperature",),
            project=positive,
        )

    @property
    def delays(self) -> Delays:
        return Delays(self.config.policy_delay, self.config.target_update_interval)

    def init_params(self, spec: Spec, key: Key) -> tuple[Params, Key]:
        actor_key, critic_key, key = jax.random.split(key, 3)
        discrete = isinstance(spec.action, Discrete)
        head = CategoricalActor if discrete else SquashedGaussianActor
        borrow = self.config.share_encoder
        actor = make_actor(
            head, spec, self.config, self.networks, actor_key, share=self.config.share_encoder
        )
        make = make_q_values if discrete else make_critics
        critic = make(spec, self.config, self.networks, critic_key)
        start = jnp.float32(self.config.initial_temperature)
        temperature = jnp.log(start) if self.config.use_log_temperature else start
        return Params(actor, critic, temperature), key

    def init_hyper(self, spec: Spec) -> dict[str, Scalar]:
        wanted = jnp.float32(default_target_entropy(spec.action))
        return {"target_entropy": wanted, **super().init_hyper(spec)}

    def policy(self, state: TrainState) -> Policy:
        return Policy(
            share_encoder(state.params.actor, state.params.critic), state.normalizer.observation
        )

    def choose(
        self,
        policy: Policy,
        noise: Tree,
        seen: Observation,
        first: Bool[Array, " envs"],
        key: Key,
        explore: bool,
    ) -> tuple[Shaped[Array, "envs *action"], Tree, Metrics]:
        if not explore:
            return policy.actor.mode(seen), noise, {}
        if isinstance(policy.actor, CategoricalActor):
            choices = policy.actor(seen)
            action = choices.sample(key)
            return action, noise, {"log_prob": choices.log_prob(action)}
        mean, log_std = policy.actor(seen)
        drawn = jax.random.normal(key, mean.shape)
        action, log_prob = squashed_gaussian_sample(mean, log_std, drawn)
        return action, noise, {"log_prob": log_prob}

    def gradients(
        self, state: TrainState, batch: Batch, key: Key, mask: UpdateMask
    ) -> tuple[Gradients, Aux]:
        """All gradients at one and the same state: the actor's is taken at the current critic,
        before this update moves it. A delayed actor costs nothing."""
        noise_key, addon_key, subset_key = jax.random.split(key, 3)
        temperature = self.temperature(state)
        critics = sample_critics(state.targets.critic, self.config.critic_subset, subset_key)
        looked_at = encode_for_actor(state, batch, self.config)
        reduction = pessimistic if self.config.critic_subset is None else losses.average
        target, loss_of_actor = objectives(
            state, critics, batch, looked_at, temperature, noise_key, reduction
        )
        differentiate = jax.value_and_grad(losses.critic_loss, has_aux=True)
        (critic_loss, error), critic_gradient = differentiate(state.params.critic, batch, target)

        def actor_objective(actor: Any) -> tuple[Scalar, tuple[Array, Metrics]]:
            loss, log_prob = loss_of_actor(actor)
            extra, addon_metrics = add_terms(self.loss_addons, actor, batch, addon_key)
            return loss + extra, (log_prob, {"actor_loss": loss + extra, **addon_metrics})

        def improve() -> tuple[Any, Metrics]:
            (_, (log_prob, metrics)), actor_gradient, shared = differentiate_actor(
                actor_objective,
                state.params.actor,
                state.params.critic,
                self.config.actor_trains_encoder,
            )
            entropy_loss, temperature_gradient = jax.value_and_grad(losses.entropy_loss)(
                state.params.temperature, log_prob, state.hyper["target_entropy"], batch.weight
            )
            metrics["entropy"] = -mean_over_steps(log_prob, batch.weight)
            if self.config.temperature is None:
                metrics["ent_coef_loss"] = entropy_loss
            return (actor_gradient, shared, temperature_gradient), metrics

        (actor_gradient, shared, temperature_gradient), metrics = unless_delayed(
            mask.policy, improve
        )
        metrics |= {
            "critic_loss": critic_loss,
            "ent_coef": temperature,
            "q_mean": mean_over_steps(target + error, batch.weight),
        }
        critic_gradient = add_encoder_gradient(critic_gradient, shared)
        params = Params(actor_gradient, critic_gradient, temperature_gradient)
        return Gradients(params, mask), Aux(metrics, jnp.mean(jnp.abs(error), axis=0))

    def temperature(self, state: TrainState) -> Scalar:
        """The temperature α of this moment, fixed or learned."""
        if self.config.temperature is not None:
            return state.hyper["temperature"]
        return (
            jnp.exp(state.params.temperature)
            if self.config.use_log_temperature
            else state.params.temperature
        )

    def q_values(
        self, state: TrainState, observation: Array, action: Array
    ) -> Float[Array, "critics batch"]:
        observation = normalize_observation(state.normalizer.observation, observation)
        return losses.taken_q(state.params.critic, observation, action)

    def log_prob(
        self, state: TrainState, observation: Array, action: Array
    ) -> Float[Array, " batch"]:
        actor = share_encoder(state.params.actor, state.params.critic)
        answer = actor(normalize_observation(state.normalizer.observation, observation))
        if isinstance(state.params.actor, CategoricalActor):
            return answer.log_prob(action)
        return squashed_gaussian_log_prob(action, *answer)


def _keep_positive(temperature: Scalar) -> Scalar:
    return jnp.maximum(temperature, SMALLEST_TEMPERATURE)


def default_target_entropy(action: Action) -> float:
    """−dim(A), as in the paper; of a discrete action half the entropy of a uniform choice."""
    return 0.5 * math.log(action.n) if isinstance(action, Discrete) else -float(action.size)


ActorLoss = Callable[[Any], tuple[Scalar, Float[Array, " batch"]]]


def objectives(
    state: TrainState,
    target_critic: Any,
    batch: Batch,
    actor_batch: Batch,
    temperature: Scalar,
    key: Key,
    reduction: losses.Reduction,
) -> tuple[Float[Array, " batch"], ActorLoss]:
    """The critics' target and the actor's loss: in expectation over discrete actions, by a draw
    for every row over continuous ones. (The actor's class is known when a program is traced.)
    `reduction` makes one value of the critics' in the actor's loss."""
    actor, critic = share_encoder(state.params.actor, state.params.critic), state.params.critic
    if isinstance(actor, CategoricalActor):
        target = losses.discrete_critic_target(actor, target_critic, batch, temperature)
        return target, lambda actor: losses.discrete_actor_loss(
            actor, critic, actor_batch, temperature, reduction
        )
    noise = row_normals(key, batch.row, 2 * batch.action.shape[-1])
    actor_noise, target_noise = jnp.split(noise, 2, axis=-1)
    target = losses.critic_target(actor, target_critic, batch, temperature, target_noise)
    return target, lambda actor: losses.actor_loss(
        actor, critic, actor_batch, temperature, actor_noise, reduction
    )
