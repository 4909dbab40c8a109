"""PPO: the order of an update. The maths is in losses.py; networks, exploration and advantages are
those of algorithms/rollout_actor_critic.py."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array

from understudy.algorithms import rollout_actor_critic as parts
from understudy.algorithms import rollouts
from understudy.algorithms.aux_losses import add_terms
from understudy.algorithms.base import ActorPolicy, Algorithm, Aux, Explored, First, PerRow, Result
from understudy.algorithms.optim import Gradients, Optimizers, UpdateMask
from understudy.algorithms.ppo import losses
from understudy.algorithms.ppo.config import PPOConfig
from understudy.algorithms.ppo.losses import Prepared
from understudy.algorithms.train_state import ActorCritic, TrainState
from understudy.types import (
    Continuous,
    Discrete,
    History,
    Key,
    Metrics,
    MultiDiscrete,
    Observation,
    Scalar,
    Spec,
    Trajectory,
    Tree,
)

KL_TOLERANCE = 1.5  # updates end where the approximate KL is above this times target_kl


class StoppingActorCritic(NamedTuple):
    """The params with `target_kl`. No optimizer moves `kl`: its "gradient" is its next value."""

    actor: Any
    critic: Any
    kl: Scalar  # approximate KL before the latest update; that which ended the updates, if one did


@final
class PPO(Algorithm):
    """Proximal Policy Optimization, for discrete, multi-discrete and continuous actions."""

    name = "ppo"
    config_class = PPOConfig
    supported_actions = (Discrete, MultiDiscrete, Continuous)
    num_envs = 8
    needs_bounds = False
    config: PPOConfig

    def init_params(self, spec: Spec, key: Key) -> tuple[Any, Key]:
        params, key = parts.init_actor_critic(self.config, self.networks, spec, key)
        if self.config.target_kl is None:
            return params, key
        return StoppingActorCritic(*params, kl=jnp.float32(0.0)), key

    @property
    def optimizers(self) -> Optimizers:
        return Optimizers(self.config, clip_together=True)

    def init_noise(self, policy: ActorPolicy, num_envs: int) -> Tree:
        return parts.init_noise(self.config, policy, num_envs)

    def explore(
        self, policy: ActorPolicy, noise: Tree, observation: Observation, first: First, key: Key
    ) -> Explored:
        return parts.explore(self.config, policy, noise, observation, first, key)

    def prepare(self, state: TrainState, batch: Trajectory) -> Prepared:
        """Compute advantages, which follow traces through time. The entries that minibatches are
        made of are steps or, with memory, environments."""
        rollout = parts.prepare_rollout(self.config, state, batch)
        observation, action, value, advantage, target, weight, extras = rollout
        assert extras is not None
        updates = jnp.full(weight.shape, state.updates)
        columns = (action, extras["log_prob"], value, advantage, target, weight, updates)
        if batch.memory is None:
            columns = tuple(map(rollouts.rows, columns))
        row = jnp.arange(len(columns[0]), dtype=jnp.int32)
        return Prepared(observation, *columns, row=row)

    def gradients(self, state: TrainState, batch: Prepared, key: Key, mask: UpdateMask) -> Result:
        """One loss for policy and value."""
        if isinstance(batch.observation, History):
            columns = map(rollouts.rows, batch[1:-1])
            batch = Prepared(batch.observation, *columns, row=batch.row)
        hyper = state.hyper

        def objective(params: ActorCritic) -> tuple[Scalar, Metrics]:
            policy, value = parts.distribution_and_value(self.config, params, batch.observation)
            log_ratio = losses.log_ratio(policy.log_prob(batch.action), batch)
            extra, addon_metrics = add_terms(self.loss_addons, params.actor, batch, key)
            actor_loss = losses.actor_loss(log_ratio, batch, hyper["clip_range"]) + extra
            value_loss = losses.value_loss(value, batch, hyper.get("value_clip_range"))
            entropy_loss = rollouts.entropy_loss(policy, batch.weight)
            critic_part = hyper["value_coeff"] * value_loss
            loss = actor_loss + critic_part + hyper["entropy_coeff"] * entropy_loss
            return loss, {
                "loss": loss,
                "actor_loss": actor_loss,
                "value_loss": value_loss,
                "entropy_loss": entropy_loss,
                "approx_kl": losses.approx_kl(log_ratio, batch),
                "clip_fraction": losses.clip_fraction(log_ratio, batch, hyper["clip_range"]),
                "explained_variance": rollouts.explained_variance(
                    batch.value, batch.value_target, batch.weight
                ),
                **addon_metrics,
            }

        networks = ActorCritic(state.params.actor, state.params.critic)
        gradients, metrics = jax.grad(objective, has_aux=True)(networks)
        if self.config.target_kl is not None:
            # Where the updates of this rollout have ended, the number that ended them is kept.
            ended = (state.updates > batch.updates[0]) & self._too_far(state, state.params.kl)
            kl = jnp.where(ended, state.params.kl, metrics["approx_kl"])
            gradients = StoppingActorCritic(*gradients, kl=kl)
            metrics = {name: jnp.where(ended, jnp.nan, x) for name, x in metrics.items()}
        return Gradients(gradients, mask), Aux(metrics, jnp.abs(batch.advantage))

    def apply(self, state: TrainState, gradients: Gradients) -> TrainState:
        """Change neither networks nor optimizers where the policy has moved too far."""
        new = super().apply(state, gradients)
        if self.config.target_kl is None:
            return new
        kl = gradients.params.kl
        kept, moved = ((x.params, x.opt_state) for x in (state, new))
        ended = self._too_far(state, kl)
        params, opt_state = jax.tree.map(lambda a, b: jnp.where(ended, a, b), kept, moved)
        return new._replace(params=params._replace(kl=kl), opt_state=opt_state)

    def _too_far(self, state: TrainState, kl: Scalar) -> Array:
        return kl > KL_TOLERANCE * state.hyper["target_kl"]

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
