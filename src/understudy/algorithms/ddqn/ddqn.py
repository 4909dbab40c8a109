"""DDQN: the order of things. The maths is in losses.py."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms import normalization
from understudy.algorithms.base import Algorithm, Aux, Index, LossAddon
from understudy.algorithms.ddqn import losses
from understudy.algorithms.ddqn.config import DDQNConfig
from understudy.algorithms.normalization import normalised
from understudy.algorithms.optim import (
    adam,
    descend,
    drawn_critics,
    every,
    hard_copy,
    initial_hyper,
    learning_rate,
    mean_over_steps,
    when,
)
from understudy.algorithms.train_state import TrainState
from understudy.networks import Networks, evaluate_ensemble
from understudy.networks.build import make_q_values
from understudy.networks.normalizer import Moments
from understudy.ops.exploration import epsilon_greedy
from understudy.ops.targets import polyak
from understudy.types import (
    Batch,
    ConfigError,
    Discrete,
    Key,
    Metrics,
    Observation,
    Scalar,
    Spec,
    Tree,
)


class Params(NamedTuple):
    critic: Any  # [critics, ...]


class Targets(NamedTuple):
    critic: Any


class Policy(NamedTuple):
    critic: Any
    seen: Moments | None  # what observations look like, where they are normalised
    epsilon: Scalar


class Due(NamedTuple):
    targets: Bool[Array, ""] | bool


class Gradients(NamedTuple):
    critic: Any
    due: Due


@final
class DDQN(Algorithm):
    """Double deep Q-learning for discrete actions."""

    name = "ddqn"
    config_class = DDQNConfig
    supported_actions = (Discrete,)
    networks_in_state = ("critic",)
    config: DDQNConfig

    def __init__(
        self,
        config: Any = None,
        *,
        networks: Networks | None = None,
        loss_addons: tuple[LossAddon, ...] = (),
    ):
        super().__init__(config, networks=networks, loss_addons=loss_addons)
        if loss_addons:
            raise ConfigError("DDQN has no actor for loss add-ons to act on")

    def init(self, spec: Spec, key: Key) -> TrainState:
        critic_key, key = jax.random.split(key)
        critic = make_q_values(
            spec, self.config, self.networks, critic_key, dueling=self.config.dueling
        )
        epsilon = jnp.float32(self.config.initial_epsilon)
        return TrainState(
            params=Params(critic),
            targets=Targets(hard_copy(critic)),
            opt_state={"critic": adam(self.config.max_grad_norm).init(critic)},
            normalizer=normalization.begin(self.config, spec),
            hyper={**initial_hyper(self.config), "epsilon": epsilon},
            updates=jnp.int32(0),
            key=key,
        )

    def policy(self, state: TrainState) -> Policy:
        return Policy(state.params.critic, state.normalizer.observation, state.hyper["epsilon"])

    def choose(
        self,
        policy: Policy,
        noise: Tree,
        seen: Observation,
        first: Bool[Array, " envs"],
        key: Key,
        explore: bool,
    ) -> tuple[Int32[Array, " envs"], Tree, Metrics]:
        q = losses.mean_q(policy.critic, seen)
        action = jnp.argmax(q, axis=-1)
        if explore:
            action = epsilon_greedy(action, q.shape[-1], policy.epsilon, key)
        return action, noise, {}

    @property
    def due_period(self) -> int:
        return self.config.target_update_interval

    def due(self, index: Index) -> Due:
        return Due(targets=every(index, self.config.target_update_interval))

    def gradients(
        self, state: TrainState, batch: Batch, key: Key, due: Due
    ) -> tuple[Gradients, Aux]:
        """Nothing is drawn but the critics to ask, which are the same for every row."""
        target = losses.critic_target(
            state.params.critic,
            drawn_critics(state.targets.critic, self.config.critic_subset, key),
            batch,
        )
        differentiate = jax.value_and_grad(losses.critic_loss, has_aux=True)
        (critic_loss, error), critic_gradient = differentiate(
            state.params.critic, batch, target, losses.COSTS[self.config.loss]
        )
        metrics = {
            "critic_loss": critic_loss,
            "q_mean": mean_over_steps(target + error, batch.weight),
            "epsilon": state.hyper["epsilon"],
        }
        return Gradients(critic_gradient, due), Aux(metrics, jnp.mean(jnp.abs(error), axis=0))

    def apply(self, state: TrainState, gradients: Gradients) -> TrainState:
        critic, critic_moments = descend(
            adam(self.config.max_grad_norm),
            gradients.critic,
            state.opt_state["critic"],
            state.params.critic,
            learning_rate(state.hyper, "critic"),
        )
        target_critic = when(
            gradients.due.targets,
            lambda: polyak(state.targets.critic, critic, state.hyper["tau"]),
            lambda: state.targets.critic,
        )
        return state._replace(
            params=Params(critic),
            targets=Targets(target_critic),
            opt_state={"critic": critic_moments},
            updates=state.updates + 1,
        )

    def q_values(
        self, state: TrainState, observation: Array, action: Int32[Array, " batch"]
    ) -> Float[Array, "critics batch"]:
        observation = normalised(state.normalizer.observation, observation)
        return losses.of_action(evaluate_ensemble(state.params.critic, observation), action)

    def value(self, state: TrainState, observation: Array) -> Float[Array, " batch"]:
        """Of the best action, in the mean opinion of the critics."""
        observation = normalised(state.normalizer.observation, observation)
        return jnp.max(losses.mean_q(state.params.critic, observation), axis=-1)
