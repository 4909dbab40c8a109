"""DDQN: networks, exploration and the order of an update. The maths is in losses.py."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

from understudy.algorithms import off_policy
from understudy.algorithms.base import Algorithm, Explored, First, PerRow, Result
from understudy.algorithms.ddqn import losses
from understudy.algorithms.ddqn.config import DDQNConfig
from understudy.algorithms.gradients import (
    differentiate_critic,
    sample_critics,
    target_params,
    with_dropout,
)
from understudy.algorithms.joint_pass import encode_online
from understudy.algorithms.optim import Gradients, Optimizers, UpdateMask
from understudy.algorithms.train_state import TrainState
from understudy.networks.build import make_critics
from understudy.networks.normalizer import Statistics
from understudy.ops.exploration import epsilon_greedy
from understudy.ops.targets import REDUCTIONS
from understudy.types import Batch, Discrete, Key, Observation, Scalar, Spec, Tree


class Params(NamedTuple):
    critic: Any  # [critics, ...]


class Policy(NamedTuple):
    critic: Any
    normalizer: Statistics | None  # of observations, if they are normalized
    epsilon: Scalar


@final
class DDQN(Algorithm):
    """Double deep Q-learning for discrete actions."""

    name = "ddqn"
    config_class = DDQNConfig
    supported_actions = (Discrete,)
    target_names = ("critic",)
    config: DDQNConfig
    q_values = off_policy.q_values

    @property
    def optimizers(self) -> Optimizers:
        return Optimizers(self.config, networks={"critic": "critic_learning_rate"})

    def init_params(self, spec: Spec, key: Key) -> tuple[Params, Key]:
        critic_key, key = jax.random.split(key)
        dueling, form = self.config.dueling, self.config.return_form
        critic = make_critics(spec, self.config, self.networks, critic_key, dueling, form)
        return Params(critic), key

    def init_hyper(self, spec: Spec) -> dict[str, Scalar]:
        return {**super().init_hyper(spec), "epsilon": jnp.float32(self.config.initial_epsilon)}

    def policy(self, state: TrainState) -> Policy:
        return Policy(state.params.critic, state.normalizer.observation, state.hyper["epsilon"])

    def explore(
        self, policy: Policy, noise: Tree, observation: Observation, first: First, key: Key
    ) -> Explored:
        q = losses.mean_q(policy.critic, observation)
        action = jnp.argmax(q, axis=-1)
        return epsilon_greedy(action, q.shape[-1], policy.epsilon, key), noise, {}

    def greedy_action(self, policy: Policy, observation: Observation) -> Int32[Array, " envs"]:
        return jnp.argmax(losses.mean_q(policy.critic, observation), axis=-1)

    def gradients(self, state: TrainState, batch: Batch, key: Key, mask: UpdateMask) -> Result:
        """The key draws a subset of the critics, which is the same for every row."""
        state = with_dropout(state, self.config, batch, key)
        online = encode_online(state.params.critic, batch)
        critics = sample_critics(target_params(state).critic, self.config.critic_subset, key)
        reduction = REDUCTIONS[self.config.target_critics]
        target = losses.critic_target(online.next_critic, critics, batch, reduction)
        cost = losses.COSTS[self.config.loss]
        gradient, aux = differentiate_critic(losses.critic_loss, online, target, cost)
        metrics = aux.metrics | {"epsilon": state.hyper["epsilon"]}
        return Gradients(Params(gradient), mask), aux._replace(metrics=metrics)

    def value(self, state: TrainState, observation: Array) -> PerRow:
        """Return the value of the best action by the mean of the critics."""
        return jnp.max(losses.mean_q(state.params.critic, observation), axis=-1)
