"""DDQN: the order of things. The maths is in losses.py."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms import normalization
from understudy.algorithms.base import Algorithm, Aux, Index, LossAddon
from understudy.algorithms.ddqn import losses
from understudy.algorithms.ddqn.config import DDQNConfig
from understudy.algorithms.normalization import Running, normalised
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


class State(NamedTuple):
    critic: Any  # [critics, ...]
    target_critic: Any
    critic_moments: Tree
    running: Running
    hyper: dict[str, Scalar]
    updates: Int32[Array, ""]
    key: Key


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

    def init(self, spec: Spec, key: Key) -> State:
        critic_key, key = jax.random.split(key)
        critic = make_q_values(
            spec, self.config, self.networks, critic_key, dueling=self.config.dueling
        )
        epsilon = jnp.float32(self.config.initial_epsilon)
        return State(
            critic=critic,
            target_critic=hard_copy(critic),
            critic_moments=adam(self.config.max_grad_norm).init(critic),
            running=normalization.begin(self.config, spec),
            hyper={**initial_hyper(self.config), "epsilon": epsilon},
            updates=jnp.int32(0),
            key=key,
        )

    def policy(self, state: State) -> Policy:
        return Policy(state.critic, state.running.observation, state.hyper["epsilon"])

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

    def gradients(self, state: State, batch: Batch, key: Key, due: Due) -> tuple[Gradients, Aux]:
        """Nothing is drawn but the critics to ask, which are the same for every row."""
        target = losses.critic_target(
            state.critic,
            drawn_critics(state.target_critic, self.config.critic_subset, key),
            batch,
        )
        differentiate = jax.value_and_grad(losses.critic_loss, has_aux=True)
        (critic_loss, error), critic_gradient = differentiate(
            state.critic, batch, target, losses.COSTS[self.config.loss]
        )
        metrics = {
            "critic_loss": critic_loss,
            "q_mean": mean_over_steps(target + error, batch.weight),
            "epsilon": state.hyper["epsilon"],
        }
        return Gradients(critic_gradient, due), Aux(metrics, jnp.mean(jnp.abs(error), axis=0))

    def apply(self, state: State, gradients: Gradients) -> State:
        critic, critic_moments = descend(
            adam(self.config.max_grad_norm),
            gradients.critic,
            state.critic_moments,
            state.critic,
            learning_rate(state.hyper, "critic"),
        )
        target_critic = when(
            gradients.due.targets,
            lambda: polyak(state.target_critic, critic, state.hyper["tau"]),
            lambda: state.target_critic,
        )
        return state._replace(
            critic=critic,
            target_critic=target_critic,
            critic_moments=critic_moments,
            updates=state.updates + 1,
        )

    def q_values(
        self, state: State, observation: Array, action: Int32[Array, " batch"]
    ) -> Float[Array, "critics batch"]:
        observation = normalised(state.running.observation, observation)
        return losses.of_action(evaluate_ensemble(state.critic, observation), action)

    def value(self, state: State, observation: Array) -> Float[Array, " batch"]:
        """Of the best action, in the mean opinion of the critics."""
        observation = normalised(state.running.observation, observation)
        return jnp.max(losses.mean_q(state.critic, observation), axis=-1)
