"""SAC: networks, exploration and the order of an update. The maths is in losses.py."""

import math
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array

from understudy.algorithms import off_policy
from understudy.algorithms.base import ActorPolicy, Algorithm, Explored, First, PerRow, Result
from understudy.algorithms.gradients import (
    ActorLoss,
    Part,
    differentiate_critic,
    join_gradients,
    mean_over_steps,
    sample_critics,
    target_params,
    with_dropout,
)
from understudy.algorithms.joint_pass import Online, encode_online, normalize_jointly
from understudy.algorithms.optim import Optimizers, UpdateMask
from understudy.algorithms.sac import losses
from understudy.algorithms.sac.config import SACConfig
from understudy.algorithms.train_state import TrainState
from understudy.networks import CategoricalActor, SquashedGaussianActor, share_encoder
from understudy.ops.densities import (
    row_normals,
    squashed_gaussian_log_prob,
    squashed_gaussian_sample,
)
from understudy.ops.exploration import initial_noise, next_normals
from understudy.ops.targets import REDUCTIONS, Target
from understudy.types import (
    Batch,
    ConfigError,
    Continuous,
    Discrete,
    Key,
    Observation,
    Scalar,
    Spec,
    Tree,
)

SMALLEST_TEMPERATURE = 1e-8  # the lower bound of a directly learned temperature


class Params(NamedTuple):
    actor: Any
    critic: Any  # [critics, ...]
    temperature: Scalar  # log α, or α itself (use_log_temperature=False)


@final
class SAC(Algorithm):
    """Soft Actor-Critic, for continuous and for discrete actions."""

    name = "sac"
    config_class = SACConfig
    supported_actions = (Continuous, Discrete)
    target_names = ("critic",)
    config: SACConfig
    q_values = off_policy.q_values

    @property
    def optimizers(self) -> Optimizers:
        learned = self.config.temperature is None
        numbers = {"temperature": "temperature_learning_rate"} if learned else {}
        positive = {} if self.config.use_log_temperature else {"temperature": _keep_positive}
        return Optimizers(self.config, numbers=numbers, project=positive)

    def init_params(self, spec: Spec, key: Key) -> tuple[Params, Key]:
        kind = CategoricalActor if isinstance(spec.action, Discrete) else SquashedGaussianActor
        (actor, critic), key = off_policy.init_actor_and_critics(self, kind, spec, key)
        start = jnp.float32(self.config.initial_temperature)
        temperature = jnp.log(start) if self.config.use_log_temperature else start
        return Params(actor, critic, temperature), key

    def init_hyper(self, spec: Spec) -> dict[str, Scalar]:
        """The target entropy is −dim(A), as in the paper, or that of Gaussian noise; for a discrete
        action it is half the entropy of a uniform choice."""
        discrete, size = isinstance(spec.action, Discrete), spec.action.size
        default = 0.5 * math.log(size) if discrete else -size
        if (sigma := self.config.target_entropy_sigma) is not None:
            default = 0.5 * size * math.log(2.0 * math.pi * math.e * sigma**2)
        return {"target_entropy": jnp.float32(default), **super().init_hyper(spec)}

    def init_noise(self, policy: ActorPolicy, num_envs: int) -> Tree:
        if self.config.max_noise_hold == 1:
            return ()
        size = policy.actor.head.bias.shape[-1] // policy.actor.outputs_per_size
        return initial_noise(num_envs, size)

    def explore(
        self, policy: ActorPolicy, noise: Tree, observation: Observation, first: First, key: Key
    ) -> Explored:
        if isinstance(policy.actor, CategoricalActor):
            choices = policy.actor(observation)
            action = choices.sample(key)
            return action, noise, {"log_prob": choices.log_prob(action)}
        mean, log_std = policy.actor(observation)
        drawn, noise = next_normals(noise, first, key, mean.shape, self.config.max_noise_hold)
        action, log_prob = squashed_gaussian_sample(mean, log_std, drawn)
        return action, noise, {"log_prob": log_prob}

    def gradients(self, state: TrainState, batch: Batch, key: Key, mask: UpdateMask) -> Result:
        """Take all gradients at one state: the actor's at the current critic, before this update
        moves it. A delayed actor costs nothing."""
        state = with_dropout(state, self.config, batch, key)
        noise_key, addon_key, subset_key = jax.random.split(key, 3)
        temperature = self.temperature(state)
        online = encode_online(state.params.critic, batch)
        online, target, actor_loss = self._objectives(
            state, online, temperature, noise_key, subset_key
        )
        critic_part = differentiate_critic(losses.critic_loss, online, target)

        def differentiate_temperature(log_prob: PerRow) -> Part:
            loss, gradient = jax.value_and_grad(losses.entropy_loss)(
                state.params.temperature, log_prob, state.hyper["target_entropy"], batch.weight
            )
            metrics = {"entropy": -mean_over_steps(log_prob, batch.weight)}
            if self.config.temperature is None:
                metrics["ent_coef_loss"] = loss
            return gradient, metrics

        gradients, aux = join_gradients(
            self, state, online, addon_key, mask, critic_part, actor_loss, differentiate_temperature
        )
        return gradients, aux._replace(metrics=aux.metrics | {"ent_coef": temperature})

    def _objectives(
        self, state: TrainState, online: Online, temperature: Scalar, key: Key, subset_key: Key
    ) -> tuple[Online, Target, ActorLoss]:
        """Return the critics that learn, their target and the actor's loss: expectations over
        discrete actions, one sample for every row of continuous ones. (The actor's class is known
        at trace time.)"""
        batch, critic, config = online.batch, state.params.critic, self.config
        actor = share_encoder(state.params.actor, online.next_critic)
        targets = sample_critics(target_params(state).critic, config.critic_subset, subset_key)
        averages = config.critic_subset is not None or config.critic_head == "quantile"
        usual = "mean" if averages else "minimum"
        reduction = REDUCTIONS[config.actor_critics or usual]
        of_targets = REDUCTIONS[config.target_critics]
        if isinstance(actor, CategoricalActor):
            online, targets = normalize_jointly(online, targets, batch, None)
            target = losses.discrete_critic_target(actor, targets, batch, temperature, of_targets)
            return (
                online,
                target,
                lambda actor, batch: losses.discrete_actor_loss(
                    actor, critic, batch, temperature, reduction
                ),
            )
        noise = row_normals(key, batch.row, 2 * batch.action.shape[-1])
        actor_noise, target_noise = jnp.split(noise, 2, axis=-1)

        def next_action() -> Array:
            mean, log_std = actor(batch.next_observation)
            return squashed_gaussian_sample(mean, log_std, target_noise)[0]

        online, targets = normalize_jointly(online, targets, batch, next_action)
        target = losses.critic_target(actor, targets, batch, temperature, target_noise, of_targets)
        return (
            online,
            target,
            lambda actor, batch: losses.actor_loss(
                actor, critic, batch, temperature, actor_noise, reduction
            ),
        )

    def temperature(self, state: TrainState) -> Scalar:
        """Return the present temperature α, fixed or learned."""
        if self.config.temperature is not None:
            return state.hyper["temperature"]
        learned = state.params.temperature
        return jnp.exp(learned) if self.config.use_log_temperature else learned

    def log_prob(self, state: TrainState, observation: Array, action: Array) -> PerRow:
        actor = self.policy(state).actor
        if isinstance(actor, CategoricalActor):
            return actor(observation).log_prob(action)
        return squashed_gaussian_log_prob(action, *actor(observation))

    def check(self, spec: Spec) -> None:
        super().check(spec)
        config, discrete = self.config, isinstance(spec.action, Discrete)
        if discrete and (config.target_entropy_sigma is not None or config.max_noise_hold > 1):
            raise ConfigError(
                "SAC: target_entropy_sigma and max_noise_hold are for continuous actions only"
            )


def _keep_positive(temperature: Scalar) -> Scalar:
    return jnp.maximum(temperature, SMALLEST_TEMPERATURE)
