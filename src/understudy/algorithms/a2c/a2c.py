"""A2C: the order of an update. The maths is in losses.py; networks, exploration and advantages are
those of algorithms/rollout_actor_critic.py."""

from typing import final

import jax
import jax.numpy as jnp
from jaxtyping import Array

from understudy.algorithms import rollout_actor_critic as parts
from understudy.algorithms import rollouts
from understudy.algorithms.a2c import losses
from understudy.algorithms.a2c.config import A2CConfig
from understudy.algorithms.a2c.losses import Prepared
from understudy.algorithms.aux_losses import add_terms
from understudy.algorithms.base import ActorPolicy, Algorithm, Aux, Explored, First, PerRow, Result
from understudy.algorithms.optim import Gradients, Optimizers, UpdateMask
from understudy.algorithms.train_state import ActorCritic, TrainState
from understudy.types import (
    Continuous,
    Discrete,
    Key,
    Metrics,
    MultiDiscrete,
    Observation,
    Scalar,
    Spec,
    Trajectory,
    Tree,
)


@final
class A2C(Algorithm):
    """Advantage Actor-Critic, synchronous, for discrete, multi-discrete and continuous actions."""

    name = "a2c"
    config_class = A2CConfig
    supported_actions = (Discrete, MultiDiscrete, Continuous)
    num_envs = 8
    needs_bounds = False
    config: A2CConfig

    @property
    def optimizers(self) -> Optimizers:
        return Optimizers(self.config, clip_together=True)

    def init_params(self, spec: Spec, key: Key) -> tuple[ActorCritic, Key]:
        return parts.init_actor_critic(self.config, self.networks, spec, key)

    def init_noise(self, policy: ActorPolicy, num_envs: int) -> Tree:
        return parts.init_noise(self.config, policy, num_envs)

    def explore(
        self, policy: ActorPolicy, noise: Tree, observation: Observation, first: First, key: Key
    ) -> Explored:
        return parts.explore(self.config, policy, noise, observation, first, key)

    def prepare(self, state: TrainState, batch: Trajectory) -> Prepared:
        """Compute advantages, which follow traces through time, and put all steps into rows."""
        rollout = parts.prepare_rollout(self.config, state, batch)
        columns = (rollout.action, rollout.advantage, rollout.value_target, rollout.weight)
        action, advantage, target, weight = map(rollouts.rows, columns)
        row = jnp.arange(weight.size, dtype=jnp.int32)
        return Prepared(rollout.observation, action, advantage, target, weight, row)

    def gradients(self, state: TrainState, batch: Prepared, key: Key, mask: UpdateMask) -> Result:
        """One loss for policy and value."""

        def objective(params: ActorCritic) -> tuple[Scalar, Metrics]:
            policy, value = parts.distribution_and_value(self.config, params, batch.observation)
            extra, addon_metrics = add_terms(self.loss_addons, params.actor, batch, key)
            actor_loss = losses.actor_loss(policy, batch) + extra
            value_loss = losses.value_loss(value, batch)
            entropy_loss = rollouts.entropy_loss(policy, batch.weight)
            loss = (
                actor_loss
                + state.hyper["value_coeff"] * value_loss
                + state.hyper["entropy_coeff"] * entropy_loss
            )
            explained = rollouts.explained_variance(value, batch.value_target, batch.weight)
            return loss, {
                "loss": loss,
                "actor_loss": actor_loss,
                "value_loss": value_loss,
                "entropy_loss": entropy_loss,
                "explained_variance": explained,
                **addon_metrics,
            }

        gradients, metrics = jax.grad(objective, has_aux=True)(state.params)
        return Gradients(gradients, mask), Aux(metrics, jnp.abs(batch.advantage))

    def value(self, state: TrainState, observation: Array) -> PerRow:
        return parts.value_of(self.config, state.params.actor, state.params.critic, observation)

    def log_prob(self, state: TrainState, observation: Array, action: Array) -> PerRow:
        return state.params.actor(observation).log_prob(action)

    def evaluate_actions(
        self, state: TrainState, observation: Array, action: Array
    ) -> tuple[PerRow, PerRow, PerRow]:
        """Return value, log-probability and entropy."""
        return parts.evaluate_actions(self.config, state.params, observation, action)

    def check(self, spec: Spec) -> None:
        super().check(spec)
        parts.check_actor_critic(self, spec)
