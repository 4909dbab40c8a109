"""MPO: the order of things. The maths is in losses.py."""

from functools import partial
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
    mean_over_steps,
)
from understudy.algorithms.mpo import losses
from understudy.algorithms.mpo.config import CONSTRAINTS, MULTIPLIERS, MPOConfig
from understudy.algorithms.normalization import normalize_observation
from understudy.algorithms.optim import Delays, Gradients, Optimizers, UpdateMask
from understudy.algorithms.train_state import TrainState
from understudy.networks import BoundedGaussianActor, CategoricalActor, share_encoder, encode_shared
from understudy.networks.build import make_actor, make_critics, make_q_values
from understudy.networks.normalizer import Statistics
from understudy.ops.densities import row_normals
from understudy.ops.distributions import Categorical, Gaussian
from understudy.types import (
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

LOWEST_DUAL = -18.0  # before softplus: a multiplier of 1.5e-8, from where it still comes back


class Params(NamedTuple):
    actor: Any
    critic: Any  # [critics, ...]
    duals: dict[str, Array]  # temperatures and multipliers, before softplus


class Targets(NamedTuple):
    actor: Any
    critic: Any


class Policy(NamedTuple):
    actor: Any
    normalizer: Statistics | None  # of observations, if they are normalized


@final
class MPO(Algorithm):
    """Maximum a Posteriori Policy Optimization for continuous and for discrete actions."""

    name = "mpo"
    config_class = MPOConfig
    supported_actions = (Continuous, Discrete)
    target_class = Targets
    config: MPOConfig

    @property
    def optimizers(self) -> Optimizers:
        return Optimizers(
            self.config,
            learning_rates={
                "actor": "actor_learning_rate",
                "critic": "critic_learning_rate",
                "duals": "dual_learning_rate",
            },
            numbers=("duals",),
            project={"duals": self._bound_duals},
        )

    @property
    def delays(self) -> Delays:
        return Delays(targets=self.config.target_update_interval)

    def init_params(self, spec: Spec, key: Key) -> tuple[Params, Key]:
        actor_key, critic_key, key = jax.random.split(key, 3)
        discrete = isinstance(spec.action, Discrete)
        gaussian = partial(BoundedGaussianActor, initial_std=self.config.initial_std)
        head = CategoricalActor if discrete else gaussian
        make = make_q_values if discrete else make_critics
        borrow = self.config.share_encoder
        actor = make_actor(
            head, spec, self.config, self.networks, actor_key, share=self.config.share_encoder
        )
        critic = make(spec, self.config, self.networks, critic_key)
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
    ) -> tuple[Shaped[Array, "envs ..."], Tree, Metrics]:
        answer = policy.actor(seen)
        action = answer.sample(key) if explore else answer.mode()
        if isinstance(answer, Gaussian):
            action = jnp.clip(action, -1.0, 1.0)
        return action, noise, {}

    def prepare(self, state: TrainState, batch: Batch) -> Batch:
        """Scale weights to a mean of 1 over the batch: means over rows, and means of shards' means,
        are then Σ w·x / Σ w, which the constraints bound."""
        batch = super().prepare(state, batch)
        return batch._replace(weight=batch.weight / jnp.mean(batch.weight))

    def gradients(
        self, state: TrainState, batch: Batch, key: Key, mask: UpdateMask
    ) -> tuple[Gradients, Aux]:
        """All gradients at one and the same state: networks and duals take one step each."""
        here, there, addon_key, subset_key = jax.random.split(key, 4)
        critics = sample_critics(state.targets.critic, self.config.critic_subset, subset_key)
        target_actor = share_encoder(state.targets.actor, state.targets.critic)
        seen, then = (
            encode_shared(state.targets.actor, state.targets.critic, moment)
            for moment in (batch.observation, batch.next_observation)
        )
        following = self._options(target_actor, critics, then, there, batch.row)
        target = losses.critic_target(batch, following)
        differentiate = jax.value_and_grad(losses.critic_loss, has_aux=True)
        (critic_loss, error), critic_gradient = differentiate(state.params.critic, batch, target)
        options = self._options(target_actor, state.targets.critic, seen, here, batch.row)
        actor_gradient, shared, dual_gradient, metrics = self._improve(
            state, batch, options, addon_key
        )
        critic_gradient = add_encoder_gradient(critic_gradient, shared)
        q_mean = mean_over_steps(target + error, batch.weight)
        metrics |= {"critic_loss": critic_loss, "q_mean": q_mean}
        params = Params(actor_gradient, critic_gradient, dual_gradient)
        return Gradients(params, mask), Aux(metrics, jnp.mean(jnp.abs(error), axis=0))

    def _improve(
        self, state: TrainState, batch: Batch, options: losses.Options, key: Key
    ) -> tuple[Any, Any, dict[str, Array], Metrics]:
        """E-step, M-step and their multipliers: the gradients of the actor, of what it shares
        with the critics, and of the duals."""
        wanted = losses.objectives(options, self.config.penalize_actions)
        values = jax.tree.map(jax.nn.softplus, state.params.duals)
        improved = losses.improve(wanted, values, options.log_prior)

        def actor_objective(actor: Any) -> tuple[Scalar, tuple[dict[str, Array], Metrics]]:
            policy = actor(batch.observation)
            discrete = isinstance(policy, Categorical)
            fit = losses.fit_categorical if discrete else losses.fit_gaussian
            loss, kls = fit(policy, options, improved, batch.weight)
            extra, addon_metrics = add_terms(self.loss_addons, actor, batch, key)
            total = loss + losses.priced(kls, values) + extra
            entropy = mean_over_steps(policy.entropy(), batch.weight)
            return total, (kls, {"actor_loss": total, "entropy": entropy, **addon_metrics})

        (_, (kls, actor_metrics)), actor_gradient, shared = differentiate_actor(
            actor_objective,
            state.params.actor,
            state.params.critic,
            self.config.actor_trains_encoder,
        )
        epsilon = {name: state.hyper[CONSTRAINTS[name]] for name in state.params.duals}

        def dual_objective(duals: dict[str, Array]) -> Scalar:
            values = jax.tree.map(jax.nn.softplus, duals)
            prior, weight = options.log_prior, batch.weight
            loss = losses.temperature_loss(values, wanted, epsilon, prior, weight)
            return loss + losses.multiplier_loss(values, kls, epsilon)

        dual_loss, dual_gradient = jax.value_and_grad(dual_objective)(state.params.duals)
        metrics = {
            "dual_loss": dual_loss,
            **{name: jnp.mean(kl) for name, kl in kls.items()},
            **{MULTIPLIERS.get(name, name): jnp.mean(dual) for name, dual in values.items()},
            **actor_metrics,
        }
        return actor_gradient, shared, dual_gradient, metrics

    def _bound_duals(self, duals: dict[str, Array]) -> dict[str, Array]:
        return {name: self._bounded(name, dual) for name, dual in duals.items()}

    def _bounded(self, name: str, dual: Array) -> Array:
        most = getattr(self.config, f"max_{MULTIPLIERS[name]}") if name in MULTIPLIERS else None
        highest = None if most is None else _before_softplus(jnp.float32(most))
        return jnp.clip(dual, LOWEST_DUAL, highest)

    def _options(
        self, actor: Any, critics: Any, observation: Observation, key: Key, row: Array
    ) -> losses.Options:
        policy = actor(observation)
        if isinstance(policy, Categorical):
            return losses.all_options(policy, critics, observation)
        count, size = self.config.sample_action_num, policy.mean.shape[-1]
        noise = row_normals(key, row, count * size).reshape(-1, count, size)
        return losses.drawn_options(policy, critics, observation, noise)

    def q_values(
        self, state: TrainState, observation: Array, action: Array
    ) -> Float[Array, "critics batch"]:
        observation = normalize_observation(state.normalizer.observation, observation)
        return losses.q_values(state.params.critic, observation, action)

    def log_prob(
        self, state: TrainState, observation: Array, action: Array
    ) -> Float[Array, " batch"]:
        """Of the Gaussian itself, for continuous actions: before draws are clipped."""
        actor = share_encoder(state.params.actor, state.params.critic)
        return actor(normalize_observation(state.normalizer.observation, observation)).log_prob(
            action
        )

    def value(self, state: TrainState, observation: Array) -> Float[Array, " batch"]:
        """E[Q(s, a)] under the policy: exact for discrete actions, else over draws that are the
        same until the next update."""
        observation = normalize_observation(state.normalizer.observation, observation)
        row = jnp.arange(len(observation))
        actor = share_encoder(state.params.actor, state.params.critic)
        return self._options(actor, state.params.critic, observation, state.key, row).value


def _before_softplus(value: Array) -> Array:
    """The inverse of softplus, in the form that holds for small and for large values."""
    return value + jnp.log(-jnp.expm1(-value))
