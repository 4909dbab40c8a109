"""SAC: the order of things. The maths is in losses.py."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from understudy.algorithms import normalization
from understudy.algorithms.aux_losses import add_terms
from understudy.algorithms.base import Algorithm, Aux, Index
from understudy.algorithms.normalization import normalised
from understudy.algorithms.optim import (
    adam,
    add_shared,
    descend,
    differentiate_actor,
    drawn_critics,
    every,
    hard_copy,
    initial_hyper,
    learning_rate,
    mean_over_steps,
    when,
)
from understudy.algorithms.sac import losses
from understudy.algorithms.sac.config import SACConfig
from understudy.algorithms.train_state import TrainState
from understudy.networks import CategoricalActor, SquashedGaussianActor, lend
from understudy.networks.build import make_actor, make_critics, make_q_values
from understudy.networks.normalizer import Moments
from understudy.ops.densities import (
    row_normals,
    squashed_gaussian_log_prob,
    squashed_gaussian_sample,
)
from understudy.ops.targets import pessimistic, polyak
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

SMALLEST_ENTROPY_COEFF = 1e-8  # where a directly learned temperature is held above zero


class Params(NamedTuple):
    actor: Any
    critic: Any  # [critics, ...]
    temperature: Scalar  # log α, or α itself (use_log_entropy=False)


class Targets(NamedTuple):
    critic: Any


class Policy(NamedTuple):
    actor: Any
    seen: Moments | None  # what observations look like, where they are normalised


class Due(NamedTuple):
    targets: Bool[Array, ""] | bool


class Gradients(NamedTuple):
    actor: Any
    critic: Any
    temperature: Scalar
    due: Due


@final
class SAC(Algorithm):
    """Soft Actor-Critic, for continuous and for discrete actions."""

    name = "sac"
    config_class = SACConfig
    supported_actions = (Continuous, Discrete)
    networks_in_state = ("actor", "critic")
    config: SACConfig

    def init(self, spec: Spec, key: Key) -> TrainState:
        actor_key, critic_key, key = jax.random.split(key, 3)
        discrete = isinstance(spec.action, Discrete)
        head = CategoricalActor if discrete else SquashedGaussianActor
        borrow = self.config.share_encoder
        actor = make_actor(head, spec, self.config, self.networks, actor_key, borrow=borrow)
        make = make_q_values if discrete else make_critics
        critic = make(spec, self.config, self.networks, critic_key)
        start = jnp.float32(self.config.initial_entropy_coeff)
        temperature = jnp.log(start) if self.config.use_log_entropy else start
        optimiser = adam(self.config.max_grad_norm)
        hyper = initial_hyper(self.config)
        hyper.setdefault("target_entropy", jnp.float32(default_target_entropy(spec.action)))
        return TrainState(
            params=Params(actor, critic, temperature),
            targets=Targets(hard_copy(critic)),
            opt_state={
                "actor": optimiser.init(actor),
                "critic": optimiser.init(critic),
                "temperature": adam(None).init(temperature),
            },
            normalizer=normalization.begin(self.config, spec),
            hyper=hyper,
            updates=jnp.int32(0),
            key=key,
        )

    def policy(self, state: TrainState) -> Policy:
        return Policy(lend(state.params.actor, state.params.critic), state.normalizer.observation)

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

    @property
    def due_period(self) -> int:
        return self.config.target_update_interval

    def due(self, index: Index) -> Due:
        return Due(targets=every(index, self.config.target_update_interval))

    def gradients(
        self, state: TrainState, batch: Batch, key: Key, due: Due
    ) -> tuple[Gradients, Aux]:
        """All gradients at one and the same state: the actor's is taken at the current critic,
        before this update moves it."""
        noise_key, addon_key, subset_key = jax.random.split(key, 3)
        coeff = self.entropy_coeff(state)
        critics = drawn_critics(state.targets.critic, self.config.critic_subset, subset_key)
        looked_at = self.for_actor(state, batch)
        reduction = pessimistic if self.config.critic_subset is None else losses.average
        target, loss_of_actor = objectives(
            state, critics, batch, looked_at, coeff, noise_key, reduction
        )
        differentiate = jax.value_and_grad(losses.critic_loss, has_aux=True)
        (critic_loss, error), critic_gradient = differentiate(state.params.critic, batch, target)

        def actor_objective(actor: Any) -> tuple[Scalar, tuple[Array, Metrics]]:
            loss, log_prob = loss_of_actor(actor)
            extra, addon_metrics = add_terms(self.loss_addons, actor, batch, addon_key)
            return loss + extra, (log_prob, addon_metrics)

        (actor_loss, (log_prob, addon_metrics)), actor_gradient, shared = differentiate_actor(
            actor_objective,
            state.params.actor,
            state.params.critic,
            self.config.actor_trains_encoder,
        )
        entropy_loss, temperature_gradient = jax.value_and_grad(losses.entropy_loss)(
            state.params.temperature, log_prob, state.hyper["target_entropy"], batch.weight
        )
        metrics = {
            "actor_loss": actor_loss,
            "critic_loss": critic_loss,
            "ent_coef": coeff,
            "entropy": -mean_over_steps(log_prob, batch.weight),
            "q_mean": mean_over_steps(target + error, batch.weight),
            **addon_metrics,
        }
        if self.config.entropy_coeff is None:
            metrics["ent_coef_loss"] = entropy_loss
        critic_gradient = add_shared(critic_gradient, shared)
        gradients = Gradients(actor_gradient, critic_gradient, temperature_gradient, due)
        return gradients, Aux(metrics, jnp.mean(jnp.abs(error), axis=0))

    def apply(self, state: TrainState, gradients: Gradients) -> TrainState:
        optimiser = adam(self.config.max_grad_norm)
        rate = {name: learning_rate(state.hyper, name) for name in ("actor", "critic", "entropy")}
        actor, actor_moments = descend(
            optimiser, gradients.actor, state.opt_state["actor"], state.params.actor, rate["actor"]
        )
        critic, critic_moments = descend(
            optimiser,
            gradients.critic,
            state.opt_state["critic"],
            state.params.critic,
            rate["critic"],
        )
        target_critic = when(
            gradients.due.targets,
            lambda: polyak(state.targets.critic, critic, state.hyper["tau"]),
            lambda: state.targets.critic,
        )
        temperature, temperature_moments = state.params.temperature, state.opt_state["temperature"]
        if self.config.entropy_coeff is None:
            temperature, temperature_moments = descend(
                adam(None), gradients.temperature, temperature_moments, temperature, rate["entropy"]
            )
            if not self.config.use_log_entropy:
                temperature = jnp.maximum(temperature, SMALLEST_ENTROPY_COEFF)
        return state._replace(
            params=Params(actor, critic, temperature),
            targets=Targets(target_critic),
            opt_state={
                "actor": actor_moments,
                "critic": critic_moments,
                "temperature": temperature_moments,
            },
            updates=state.updates + 1,
        )

    def entropy_coeff(self, state: TrainState) -> Scalar:
        """The temperature α of this moment, fixed or learned."""
        if self.config.entropy_coeff is not None:
            return state.hyper["entropy_coeff"]
        return (
            jnp.exp(state.params.temperature)
            if self.config.use_log_entropy
            else state.params.temperature
        )

    def q_values(
        self, state: TrainState, observation: Array, action: Array
    ) -> Float[Array, "critics batch"]:
        observation = normalised(state.normalizer.observation, observation)
        return losses.taken_q(state.params.critic, observation, action)

    def log_prob(
        self, state: TrainState, observation: Array, action: Array
    ) -> Float[Array, " batch"]:
        actor = lend(state.params.actor, state.params.critic)
        answer = actor(normalised(state.normalizer.observation, observation))
        if isinstance(state.params.actor, CategoricalActor):
            return answer.log_prob(action)
        return squashed_gaussian_log_prob(action, *answer)


def default_target_entropy(action: Action) -> float:
    """−dim(A), as in the paper; of a discrete action half the entropy of a uniform choice."""
    return 0.5 * math.log(action.n) if isinstance(action, Discrete) else -float(action.size)


ActorLoss = Callable[[Any], tuple[Scalar, Float[Array, " batch"]]]


def objectives(
    state: TrainState,
    target_critic: Any,
    batch: Batch,
    for_actor: Batch,
    coeff: Scalar,
    key: Key,
    reduction: losses.Reduction,
) -> tuple[Float[Array, " batch"], ActorLoss]:
    """The critics' target and the actor's loss: in expectation over discrete actions, by a draw
    for every row over continuous ones. (The actor's class is known when a program is traced.)
    `reduction` makes one value of the critics' in the actor's loss."""
    actor, critic = lend(state.params.actor, state.params.critic), state.params.critic
    if isinstance(actor, CategoricalActor):
        target = losses.discrete_critic_target(actor, target_critic, batch, coeff)
        return target, lambda actor: losses.discrete_actor_loss(
            actor, critic, for_actor, coeff, reduction
        )
    noise = row_normals(key, batch.row, 2 * batch.action.shape[-1])
    actor_noise, target_noise = jnp.split(noise, 2, axis=-1)
    target = losses.critic_target(actor, target_critic, batch, coeff, target_noise)
    return target, lambda actor: losses.actor_loss(
        actor, critic, for_actor, coeff, actor_noise, reduction
    )
