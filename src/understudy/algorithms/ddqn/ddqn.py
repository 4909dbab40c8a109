"""DDQN: the order of things. The maths is in losses.py."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms.base import Algorithm, Aux, LossAddon
from understudy.algorithms.ddqn import losses
from understudy.algorithms.ddqn.config import DDQNConfig
from understudy.algorithms.gradients import sample_critics, mean_over_steps
from understudy.algorithms.normalization import normalize_observation
from understudy.algorithms.optim import Delays, Gradients, Optimizers, UpdateMask
from understudy.algorithms.train_state import TrainState
from understudy.networks import Networks, evaluate_ensemble
from understudy.networks.build import make_q_values
from understudy.networks.normalizer import Statistics
from understudy.ops.exploration import epsilon_greedy
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
    normalizer: Statistics | None  # of observations, if they are normalized
    epsilon: Scalar


@final
class DDQN(Algorithm):
    """Double deep Q-learning for discrete actions."""

    name = "ddqn"
    config_class = DDQNConfig
    supported_actions = (Discrete,)
    target_class = Targets
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

    @property
    def optimizers(self) -> Optimizers:
        return Optimizers(self.config, learning_rates={"critic": "critic_learning_rate"})

    @property
    def delays(self) -> Delays:
        return Delays(targets=self.config.target_update_interval)

    def init_params(self, spec: Spec, key: Key) -> tuple[Params, Key]:
        critic_key, key = jax.random.split(key)
        dueling = self.config.dueling
        return Params(
            make_q_values(spec, self.config, self.networks, critic_key, dueling=dueling)
        ), key

    def init_hyper(self, spec: Spec) -> dict[str, Scalar]:
        return {**super().init_hyper(spec), "epsilon": jnp.float32(self.config.initial_epsilon)}

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

    def gradients(
        self, state: TrainState, batch: Batch, key: Key, mask: UpdateMask
    ) -> tuple[Gradients, Aux]:
        """Nothing is drawn but the critics to ask, which are the same for every row."""
        target = losses.critic_target(
            state.params.critic,
            sample_critics(state.targets.critic, self.config.critic_subset, key),
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
        gradients = Gradients(Params(critic_gradient), mask)
        return gradients, Aux(metrics, jnp.mean(jnp.abs(error), axis=0))

    def q_values(
        self, state: TrainState, observation: Array, action: Int32[Array, " batch"]
    ) -> Float[Array, "critics batch"]:
        observation = normalize_observation(state.normalizer.observation, observation)
        return losses.of_action(evaluate_ensemble(state.params.critic, observation), action)

    def value(self, state: TrainState, observation: Array) -> Float[Array, " batch"]:
        """Of the best action, in the mean opinion of the critics."""
        observation = normalize_observation(state.normalizer.observation, observation)
        return jnp.max(losses.mean_q(state.params.critic, observation), axis=-1)
