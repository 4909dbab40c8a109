"""MPO: networks, exploration and the order of an update. The maths is in losses.py."""

from collections.abc import Callable
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
    target_networks,
    with_dropout,
)
from understudy.algorithms.joint_pass import encode_online
from understudy.algorithms.mpo import losses
from understudy.algorithms.mpo.config import CONSTRAINTS, MULTIPLIERS, MPOConfig
from understudy.algorithms.optim import Optimizers, UpdateMask
from understudy.algorithms.train_state import TrainState
from understudy.networks import BoundedGaussianActor, CategoricalActor
from understudy.ops.densities import row_normals
from understudy.ops.distributions import Categorical, Gaussian
from understudy.ops.targets import REDUCTIONS
from understudy.types import Batch, Continuous, Discrete, Key, Observation, Scalar, Spec, Tree

LOWEST_DUAL = -18.0  # before softplus: a multiplier of 1.5e-8, which can still grow


class Params(NamedTuple):
    actor: Any
    critic: Any  # [critics, ...]
    duals: dict[str, Array]  # temperatures and multipliers, before softplus


@final
class MPO(Algorithm):
    """Maximum a Posteriori Policy Optimization for continuous and for discrete actions."""

    name = "mpo"
    config_class = MPOConfig
    supported_actions = (Continuous, Discrete)
    target_names = ("actor", "critic")
    config: MPOConfig
    q_values = off_policy.q_values

    @property
    def optimizers(self) -> Optimizers:
        numbers, project = {"duals": "dual_learning_rate"}, {"duals": self._bound_duals}
        return Optimizers(self.config, numbers=numbers, project=project)

    def init_params(self, spec: Spec, key: Key) -> tuple[Params, Key]:
        kind, settings = BoundedGaussianActor, {"initial_std": self.config.initial_std}
        if isinstance(spec.action, Discrete):
            kind, settings = CategoricalActor, {}
        (actor, critic), key = off_policy.init_actor_and_critics(self, kind, spec, key, settings)
        return Params(actor, critic, self._initial_duals(spec)), key

    def _initial_duals(self, spec: Spec) -> dict[str, Array]:
        config = self.config
        start = {"temperature": jnp.float32(config.initial_temperature)}
        if isinstance(spec.action, Discrete):
            start["kl"] = jnp.float32(config.initial_multiplier)
        else:
            start["kl_mean"] = jnp.full(spec.action.size, config.initial_mean_multiplier)
            start["kl_var"] = jnp.full(spec.action.size, config.initial_var_multiplier)
            if config.penalize_actions:
                start["penalty_temperature"] = jnp.float32(config.initial_temperature)
        return {name: _before_softplus(value) for name, value in start.items()}

    def explore(
        self, policy: ActorPolicy, noise: Tree, observation: Observation, first: First, key: Key
    ) -> Explored:
        distribution = policy.actor(observation)
        action = distribution.sample(key)
        if isinstance(distribution, Gaussian):
            action = jnp.clip(action, -1.0, 1.0)
        return action, noise, {}

    def prepare(self, state: TrainState, batch: Batch) -> Batch:
        """Scale weights to a mean of 1 over the batch: means over rows, and means of shards' means,
        are then Σ w·x / Σ w, the quantity that the constraints bound."""
        batch = super().prepare(state, batch)
        return batch._replace(weight=batch.weight / jnp.mean(batch.weight))

    def gradients(self, state: TrainState, batch: Batch, key: Key, mask: UpdateMask) -> Result:
        """Take all gradients at one state: networks and duals take one step each."""
        state = with_dropout(state, self.config, batch, key)
        here, there, addon_key, subset_key = jax.random.split(key, 4)
        target_actor, critics, encoded = target_networks(
            state, batch, self.config.critic_subset, subset_key
        )
        following = self._candidates(
            target_actor, critics, encoded.next_observation, there, batch.row
        )
        online = encode_online(state.params.critic, batch)
        target = losses.critic_target(batch, following)
        critic_part = differentiate_critic(losses.critic_loss, online, target)
        candidates = self._candidates(
            target_actor, state.targets.critic, encoded.observation, here, batch.row
        )
        improve = self._objectives(state, batch, candidates)
        return join_gradients(self, state, online, addon_key, mask, critic_part, *improve)

    def _objectives(
        self, state: TrainState, batch: Batch, candidates: losses.Candidates
    ) -> tuple[ActorLoss, Callable[[Any], Part]]:
        """Do the E-step. Return the loss of the M-step, and the function that differentiates the
        duals of both."""
        objectives = losses.objectives(candidates, self.config.penalize_actions)
        values = jax.tree.map(jax.nn.softplus, state.params.duals)
        improved = losses.improve(objectives, values, candidates.log_prior)

        def actor_loss(actor: Any, batch: Batch) -> tuple[Scalar, tuple[dict[str, Array], Scalar]]:
            policy = actor(batch.observation)
            discrete = isinstance(policy, Categorical)
            fit = losses.fit_categorical if discrete else losses.fit_gaussian
            loss, kls = fit(policy, candidates, improved, batch.weight)
            entropy = mean_over_steps(policy.entropy(), batch.weight)
            return loss + losses.weighted_sum(kls, values), (kls, entropy)

        def differentiate_duals(extras: tuple[dict[str, Array], Scalar]) -> Part:
            kls, entropy = extras
            epsilon = {name: state.hyper[CONSTRAINTS[name]] for name in state.params.duals}

            def dual_loss(duals: dict[str, Array]) -> Scalar:
                values = jax.tree.map(jax.nn.softplus, duals)
                prior, weight = candidates.log_prior, batch.weight
                loss = losses.temperature_loss(values, objectives, epsilon, prior, weight)
                return loss + losses.multiplier_loss(values, kls, epsilon)

            loss, gradient = jax.value_and_grad(dual_loss)(state.params.duals)
            metrics = {"dual_loss": loss, "entropy": entropy}
            metrics |= {name: jnp.mean(kl) for name, kl in kls.items()}
            metrics |= {MULTIPLIERS.get(name) or name: jnp.mean(x) for name, x in values.items()}
            return gradient, metrics

        return actor_loss, differentiate_duals

    def _bound_duals(self, duals: dict[str, Array]) -> dict[str, Array]:
        return {name: self._bounded(name, dual) for name, dual in duals.items()}

    def _bounded(self, name: str, dual: Array) -> Array:
        most = getattr(self.config, f"max_{MULTIPLIERS[name]}") if name in MULTIPLIERS else None
        highest = None if most is None else _before_softplus(jnp.float32(most))
        return jnp.clip(dual, LOWEST_DUAL, highest)

    def _candidates(
        self, actor: Any, critics: Any, observation: Observation, key: Key, row: Array
    ) -> losses.Candidates:
        policy = actor(observation)
        reduction = REDUCTIONS[self.config.target_critics]
        if isinstance(policy, Categorical):
            return losses.all_candidates(policy, critics, observation, reduction)
        count, size = self.config.sample_action_num, policy.mean.shape[-1]
        noise = row_normals(key, row, count * size).reshape(-1, count, size)
        return losses.sample_candidates(policy, critics, observation, noise, reduction)

    def log_prob(self, state: TrainState, observation: Array, action: Array) -> PerRow:
        """Return the density of the Gaussian itself for continuous actions: before clipping."""
        return self.policy(state).actor(observation).log_prob(action)

    def value(self, state: TrainState, observation: Array) -> PerRow:
        """Return E[Q(s, a)] under the policy: exact for discrete actions, otherwise over samples
        that are the same until the next update."""
        actor, critics = self.policy(state).actor, state.params.critic
        row = jnp.arange(len(observation))
        return self._candidates(actor, critics, observation, state.key, row).value


def _before_softplus(value: Array) -> Array:
    """Invert softplus, in a form that is exact for small and for large values."""
    return value + jnp.log(-jnp.expm1(-value))
