"""Clipped policy gradients: the order of things. The maths is in losses.py."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp

from tests.algorithms.clipped_policy import losses
from tests.algorithms.clipped_policy.config import ClippedPolicyConfig
from understudy.algorithms import normalization
from understudy.algorithms.base import ActorPolicy, Algorithm, Aux
from understudy.algorithms.optim import Gradients, Optimizers
from understudy.networks import CategoricalActor
from understudy.networks.build import make_actor, make_value
from understudy.ops.returns import gae
from understudy.types import Discrete


class Params(NamedTuple):
    actor: Any
    critic: Any


@final
class ClippedPolicy(Algorithm):
    """Clipped policy gradients for discrete actions."""

    name = "clipped_policy"
    config_class = ClippedPolicyConfig
    supported_actions = (Discrete,)
    num_envs = 4
    config: ClippedPolicyConfig

    @property
    def optimizers(self):
        return Optimizers(self.config, clip_together=True)

    def init_params(self, spec, key):
        actor_key, critic_key, key = jax.random.split(key, 3)
        actor = make_actor(CategoricalActor, spec, self.config, self.networks, actor_key, 0.01)
        critic = make_value(spec, self.config, self.networks, critic_key, 1.0)
        return Params(actor, critic), key

    def policy(self, state):
        return ActorPolicy(state.params.actor, state.normalizer.observation)

    def explore(self, policy, noise, observation, first, key):
        choices = policy.actor(observation)
        action = choices.sample(key)
        return action, noise, {"log_prob": choices.log_prob(action)}

    def prepare(self, state, batch):
        steps = normalization.normalize_batch(state.normalizer, batch)
        value, after = (
            state.params.critic(steps.observation),
            state.params.critic(steps.next_observation),
        )
        decay = state.hyper["gamma"] * state.hyper["gae_lambda"]
        advantage = gae(steps.reward, steps.discount, steps.last, value, after, decay)
        standard = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
        each = (steps.observation, steps.action, steps.extras["log_prob"], standard,
                advantage + value, steps.valid.astype(jnp.float32))  # fmt: skip
        rows = (x.reshape(-1, *x.shape[2:]) for x in each)
        return losses.Rows(*rows, row=jnp.arange(steps.valid.size, dtype=jnp.int32))

    def gradients(self, state, batch, key, mask):
        def objective(params):
            actor, critic = params
            choices = actor(batch.observation)
            log_prob = choices.log_prob(batch.action)
            policy = losses.clipped_loss(log_prob, batch, state.hyper["clip_range"])
            value = losses.value_loss(critic(batch.observation), batch)
            moved = jnp.mean(jnp.abs(losses.ratio(log_prob, batch) - 1.0))
            return policy + value, {"actor_loss": policy, "value_loss": value, "moved": moved}

        gradients, metrics = jax.grad(objective, has_aux=True)(state.params)
        return Gradients(gradients, mask), Aux(metrics, jnp.abs(batch.advantage))
