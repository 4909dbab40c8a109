"""DDPG: networks, exploration and the order of an update. The maths is in losses.py."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp

from understudy.algorithms import off_policy
from understudy.algorithms.base import Algorithm, Explored, First, Result
from understudy.algorithms.ddpg import losses
from understudy.algorithms.ddpg.config import DDPGConfig
from understudy.algorithms.gradients import (
    differentiate_critic,
    join_gradients,
    target_networks,
    with_dropout,
)
from understudy.algorithms.joint_pass import encode_online
from understudy.algorithms.optim import UpdateMask
from understudy.algorithms.train_state import ActorCritic, TrainState
from understudy.networks import DeterministicActor, share_encoder
from understudy.networks.ensembles import select_critics
from understudy.networks.normalizer import Statistics
from understudy.ops.exploration import ornstein_uhlenbeck
from understudy.ops.targets import REDUCTIONS
from understudy.types import Batch, Continuous, Key, Observation, Scalar, Spec, Tree


class Policy(NamedTuple):
    actor: Any
    normalizer: Statistics | None  # of observations, if they are normalized
    exploration_noise: Scalar
    noise_theta: Scalar


@final
class DDPG(Algorithm):
    """Deep Deterministic Policy Gradient for continuous actions."""

    name = "ddpg"
    config_class = DDPGConfig
    supported_actions = (Continuous,)
    target_names = ("actor", "critic")
    config: DDPGConfig
    q_values = off_policy.q_values

    def init_params(self, spec: Spec, key: Key) -> tuple[ActorCritic, Key]:
        return off_policy.init_actor_and_critics(self, DeterministicActor, spec, key)

    def policy(self, state: TrainState) -> Policy:
        actor, hyper = share_encoder(state.params.actor, state.params.critic), state.hyper
        statistics = state.normalizer.observation
        return Policy(actor, statistics, hyper["exploration_noise"], hyper["noise_theta"])

    def init_noise(self, policy: Policy, num_envs: int) -> Tree:
        """Return Ornstein-Uhlenbeck noise of standard deviation 1; nothing for Gaussian noise."""
        if self.config.noise == "gaussian":
            return ()
        return jnp.zeros((num_envs, policy.actor.head.bias.shape[-1]))

    def explore(
        self, policy: Policy, noise: Tree, observation: Observation, first: First, key: Key
    ) -> Explored:
        """Eq. 7. The noise state is free of scale: a changed standard deviation counts at once."""
        action = policy.actor(observation)
        drawn = jax.random.normal(key, action.shape)
        if self.config.noise == "ornstein_uhlenbeck":
            drawn = noise = ornstein_uhlenbeck(noise, first, drawn, policy.noise_theta, 1.0)
        return jnp.clip(action + policy.exploration_noise * drawn, -1.0, 1.0), noise, {}

    def gradients(self, state: TrainState, batch: Batch, key: Key, mask: UpdateMask) -> Result:
        """Take all gradients at one state: the actor's at the current critic, before this update
        moves it."""
        state = with_dropout(state, self.config, batch, key)
        addon_key, subset_key = jax.random.split(key)
        target = losses.critic_target(
            *target_networks(state, batch, self.config.critic_subset, subset_key),
            REDUCTIONS[self.config.target_critics],
        )
        online = encode_online(state.params.critic, batch)
        critic_part = differentiate_critic(losses.critic_loss, online, target)
        first_critic = select_critics(state.params.critic, 0)

        def actor_loss(actor: Any, batch: Batch) -> tuple[Scalar, None]:
            return losses.actor_loss(actor, first_critic, batch), None

        return join_gradients(self, state, online, addon_key, mask, critic_part, actor_loss)
