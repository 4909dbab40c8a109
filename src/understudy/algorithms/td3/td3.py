"""TD3: networks, exploration and the order of an update. The maths is in losses.py."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp

from understudy.algorithms import off_policy
from understudy.algorithms.base import Algorithm, Explored, First, Result
from understudy.algorithms.gradients import (
    differentiate_critic,
    join_gradients,
    target_networks,
    with_dropout,
)
from understudy.algorithms.joint_pass import encode_online, normalize_jointly
from understudy.algorithms.optim import UpdateMask
from understudy.algorithms.td3 import losses
from understudy.algorithms.td3.config import TD3Config
from understudy.algorithms.train_state import ActorCritic, TrainState
from understudy.networks import DeterministicActor, share_encoder
from understudy.networks.ensembles import select_critics
from understudy.networks.normalizer import Statistics
from understudy.ops.densities import row_normals
from understudy.ops.exploration import initial_noise, next_normals
from understudy.ops.targets import REDUCTIONS
from understudy.types import Batch, Continuous, Key, Observation, Scalar, Spec, Tree


class Policy(NamedTuple):
    actor: Any
    normalizer: Statistics | None  # of observations, if they are normalized
    exploration_noise: Scalar


class Noise(NamedTuple):
    """The state of exploration, if it has any; a part that is off is empty."""

    held: Tree
    share: Tree  # [envs], of the range of deviations; below 0: to be drawn


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

    def init_noise(self, policy: Policy, num_envs: int) -> Tree:
        holds = self.config.max_noise_hold > 1
        spreads = self.config.min_exploration_noise is not None
        if not holds and not spreads:
            return ()
        held = initial_noise(num_envs, policy.actor.head.bias.shape[-1]) if holds else ()
        return Noise(held, jnp.full(num_envs, -1.0) if spreads else ())

    def explore(
        self, policy: Policy, noise: Tree, observation: Observation, first: First, key: Key
    ) -> Explored:
        action, scale = policy.actor(observation), policy.exploration_noise
        if not noise:
            drawn = jax.random.normal(key, action.shape)
            return jnp.clip(action + scale * drawn, -1.0, 1.0), noise, {}
        held, share = noise
        if (least := self.config.min_exploration_noise) is not None:
            key, share_key = jax.random.split(key)
            fresh = jax.random.uniform(share_key, first.shape)
            share = jnp.where(first | (share < 0.0), fresh, share)
            scale = (least + share * (scale - least))[:, None]
        drawn, held = next_normals(held, first, key, action.shape, self.config.max_noise_hold)
        return jnp.clip(action + scale * drawn, -1.0, 1.0), Noise(held, share), {}

    def gradients(self, state: TrainState, batch: Batch, key: Key, mask: UpdateMask) -> Result:
        """Take all gradients at one state: the actor's at the current critic, before this update
        moves it. A delayed actor costs nothing."""
        state = with_dropout(state, self.config, batch, key)
        noise_key, addon_key, subset_key = jax.random.split(key, 3)
        subset, hyper = self.config.critic_subset, state.hyper
        actor, targets, encoded = target_networks(state, batch, subset, subset_key)
        drawn = row_normals(noise_key, batch.row, batch.action.shape[-1])
        noise = (hyper["policy_noise"], hyper["noise_clip"], drawn)
        online = encode_online(state.params.critic, batch)
        online, targets = normalize_jointly(
            online, targets, encoded, lambda: losses.smoothed_action(actor, encoded, *noise)
        )
        reduction = REDUCTIONS[self.config.target_critics]
        target = losses.critic_target(actor, targets, encoded, *noise, reduction)
        critic_part = differentiate_critic(losses.critic_loss, online, target)
        critic, reduction = state.params.critic, REDUCTIONS.get(self.config.actor_critics)
        if reduction is None:
            critic = select_critics(critic, 0)

        def actor_loss(actor: Any, batch: Batch) -> tuple[Scalar, None]:
            return losses.actor_loss(actor, critic, batch, reduction), None

        return join_gradients(self, state, online, addon_key, mask, critic_part, actor_loss)
