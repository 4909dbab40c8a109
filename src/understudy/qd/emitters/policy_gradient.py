"""Variation by TD3's critic (Nilsson and Cully, "Policy Gradient Assisted MAP-Elites", GECCO 2021).

Critics and greedy actor are those of the library's TD3, trained by its update on the steps of all
evaluations. All offspring follow the gradient of the same critic at once.
"""

from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import optax

from understudy.algorithms.optim import descend
from understudy.algorithms.td3 import TD3
from understudy.algorithms.td3.losses import actor_loss
from understudy.buffers import ReplayState
from understudy.networks.ensembles import select_critics
from understudy.qd.config import PGAMEConfig
from understudy.qd.emitters.base import Emitter
from understudy.qd.repertoire import Repertoire, sample
from understudy.training.initialization import init_learner, metric_names
from understudy.training.learner import updates
from understudy.training.setup import make_buffer
from understudy.training.update import LearnerState, sample_batch
from understudy.types import Key, Spec, Tree


@final
class PolicyGradient(Emitter):
    """Emits elites after `policy_steps` gradient steps on the critic's value, and TD3's own actor
    (the greedy actor)."""

    def __init__(self, td3: TD3, spec: Spec, config: PGAMEConfig):
        self.size, self.td3, self._config = config.gradient_size, td3, config
        lanes = config.generation_size  # of the experience
        self._buffer = make_buffer(td3, spec, lanes)
        self.metric_names = metric_names(td3, spec, lanes)
        self._init_learner = partial(init_learner, td3, spec, lanes)

    def init(self, key: Key) -> LearnerState:
        return self._init_learner(key)

    def ask(
        self, state: LearnerState, repertoire: Repertoire, experience: ReplayState | None, key: Key
    ) -> Tree:
        greedy = jax.tree.map(lambda leaf: leaf[None], state.state.params.actor)
        if self.size == 1:
            return greedy
        parents_key, climb_key = jax.random.split(key)
        parents = sample(repertoire, parents_key, self.size - 1)
        offspring = self.climb(state, parents, experience, climb_key)
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), offspring, greedy)

    def climb(self, state: LearnerState, policies: Tree, experience: Any, key: Key) -> Tree:
        """Return policies, [size, ...], after gradient steps that increase the critic's value. All
        policies use the same batches: one sample per step."""
        optimizer = optax.scale_by_adam()
        critic = select_critics(state.state.params.critic, 0)
        step_size = jnp.float32(self._config.policy_learning_rate)

        def step(carry: tuple[Tree, Tree], key: Key) -> tuple[tuple[Tree, Tree], None]:
            batch, _ = sample_batch(self.td3, self._buffer, state.state, experience, key)

            def one(policy: Tree, opt_state: Tree) -> tuple[Tree, Tree]:
                gradient = jax.grad(actor_loss)(policy, critic, batch)
                return descend(optimizer, gradient, opt_state, policy, step_size)

            return jax.vmap(one)(*carry), None

        start = policies, jax.vmap(optimizer.init)(policies)
        keys = jax.random.split(key, self._config.policy_steps)
        (policies, _), _ = jax.lax.scan(step, start, keys)
        return policies

    def tell(self, state: LearnerState, experience: ReplayState | None) -> LearnerState:
        assert experience is not None
        steps = self._config.critic_steps
        return updates(self.td3, self._buffer, state, experience, 0, steps)[0]
