"""TD3: networks, exploration and the order of an update. The maths is in losses.py."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp

from understudy.algorithms import off_policy
from understudy.algorithms.base import Algorithm, Explored, First, Result
from understudy.algorithms.gradients import (
    differentiate_critic,
    encode_online,
    join_gradients,
    target_networks,
    with_dropout,
)
from understudy.algorithms.optim import UpdateMask
from understudy.algorithms.td3 import losses
from understudy.algorithms.td3.config import TD3Config
from understudy.algorithms.train_state import ActorCritic, TrainState
from understudy.networks import DeterministicActor, share_encoder
from understudy.networks.ensembles import select_critics
from understudy.networks.normalizer import Statistics
from understudy.ops.densities import row_normals
from understudy.types import Batch, Continuous, Key, Observation, Scalar, Spec, Tree


class Policy(NamedTuple):
    actor: Any
    normalizer: Statistics | None  # of observations, if they are normalized
    exploration_noise: Scalar


@final
class TD3(Algorithm):
    """Twin Delayed DDPG for continuous actions."""

    name = "td3"
    config_class = TD3Config
    supported_actions = (Continuous,)
    target_names = ("actor", "critic")
    config: TD3Config
    q_values = off_policy.q_values

    def init_params(self, spec: Spec, key: Key) -> tuple[ActorCritic, Key]:
        return off_policy.init_actor_and_critics(self, DeterministicActor, spec, key)

    def policy(self, state: TrainState) -> Policy:
        actor = share_encoder(state.params.actor, state.params.critic)
        return Policy(actor, state.normalizer.observation, state.hyper["exploration_noise"])

    def explore(
        self, policy: Policy, noise: Tree, observation: Observation, first: First, key: Key
    ) -> Explored:
        action = policy.actor(observation)
        drawn = policy.exploration_noise * jax.random.normal(key, action.shape)
        return jnp.clip(action + drawn, -1.0, 1.0), noise, {}

    def gradients(self, state: TrainState, batch: Batch, key: Key, mask: UpdateMask) -> Result:
        """Take all gradients at one state: the actor's at the current critic, before this update
        moves it. A delayed actor costs nothing."""
        state = with_dropout(state, self.config, batch, key)
        noise_key, addon_key, subset_key = jax.random.split(key, 3)
        target = losses.critic_target(
            *target_networks(state, batch, self.config.critic_subset, subset_key),
            state.hyper["policy_noise"],
            state.hyper["noise_clip"],
            row_normals(noise_key, batch.row, batch.action.shape[-1]),
        )
        online = encode_online(state.params.critic, batch)
        critic_part = differentiate_critic(losses.critic_loss, online, target)
        first_critic = select_critics(state.params.critic, 0)

        def actor_loss(actor: Any, batch: Batch) -> tuple[Scalar, None]:
            return losses.actor_loss(actor, first_critic, batch), None

        return join_gradients(self, state, online, addon_key, mask, critic_part, actor_loss)
