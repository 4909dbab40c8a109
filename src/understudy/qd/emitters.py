"""Emitters make the policies of a generation (ask) and learn from their evaluation (tell).

`IsoLine` varies policies without gradients (Vassiliades and Mouret, "Discovering the Elite
Hypervolume by Leveraging Interspecies Correlation", arXiv 1804.03906). `PolicyGradient` varies them
by TD3's critic (Nilsson and Cully, "Policy Gradient Assisted MAP-Elites", GECCO 2021): critics and
greedy actor are those of the library's TD3, trained by its update on the steps of all evaluations.
All offspring follow the gradient of the same critic at once.
"""

import abc
from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from understudy.algorithms.optim import descend
from understudy.algorithms.td3 import TD3
from understudy.algorithms.td3.losses import actor_loss
from understudy.buffers import ReplayState
from understudy.networks.ensembles import select_critics
from understudy.qd.config import PGAMEConfig
from understudy.qd.repertoire import Repertoire, sample
from understudy.training.initialization import init_learner, metric_names
from understudy.training.learner import updates
from understudy.training.setup import make_buffer
from understudy.training.update import LearnerState, sample_batch
from understudy.types import Key, Spec, Tree


class Emitter(abc.ABC):
    """Makes a part of each generation. Abstract. Its methods are pure functions of its state."""

    size: int  # policies per generation

    def init(self, key: Key) -> Any:
        """Return the state before the first generation."""
        return ()

    @abc.abstractmethod
    def ask(
        self, state: Any, repertoire: Repertoire, experience: ReplayState | None, key: Key
    ) -> Tree:
        """Return policies to evaluate, [size, ...]. The repertoire is not empty."""

    def tell(self, state: Any, experience: ReplayState | None) -> Any:
        """Return the state after a generation, whose steps are in the `experience`."""
        return state


@final
class CombinedEmitter(Emitter):
    """Each emitter makes a part of the generation; all of them learn from the whole."""

    def __init__(self, emitters: Sequence[Emitter]):
        self.emitters = [emitter for emitter in emitters if emitter.size]
        self.size = sum(emitter.size for emitter in self.emitters)

    def init(self, key: Key) -> tuple[Any, ...]:
        keys = jax.random.split(key, len(self.emitters))
        return tuple(emitter.init(key) for emitter, key in zip(self.emitters, keys, strict=True))

    def ask(
        self, state: Any, repertoire: Repertoire, experience: ReplayState | None, key: Key
    ) -> Tree:
        keys = jax.random.split(key, len(self.emitters))
        parts = [
            emitter.ask(own, repertoire, experience, key)
            for emitter, own, key in zip(self.emitters, state, keys, strict=True)
        ]
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    def tell(self, state: tuple[Any, ...], experience: ReplayState | None) -> tuple[Any, ...]:
        return tuple(
            emitter.tell(own, experience) for emitter, own in zip(self.emitters, state, strict=True)
        )


@final
class IsoLine(Emitter):
    """offspring = x + σ₁·N(0, I) + σ₂·N(0, 1)·(y − x), for two parents x and y."""

    def __init__(self, size: int, iso_sigma: float, line_sigma: float):
        self.size, self._iso, self._line = size, iso_sigma, line_sigma

    def ask(
        self, state: Any, repertoire: Repertoire, experience: ReplayState | None, key: Key
    ) -> Tree:
        x_key, y_key, noise_key = jax.random.split(key, 3)
        x, y = (sample(repertoire, parents_key, self.size) for parents_key in (x_key, y_key))
        return vary(x, y, self._iso, self._line, noise_key)


def vary(x: Tree, y: Tree, iso_sigma: float, line_sigma: float, key: Key) -> Tree:
    """Return the offspring of the parents `x` and `y`, [size, ...] each. A policy has one step
    along the line; each weight has its own noise."""
    leaves, structure = jax.tree.flatten(x)
    line_key, *keys = jax.random.split(key, len(leaves) + 1)
    along = line_sigma * jax.random.normal(line_key, (len(leaves[0]),))

    def move(one: Array, other: Array, key: Key) -> Array:
        share = along.reshape(-1, *[1] * (one.ndim - 1))
        return one + share * (other - one) + iso_sigma * jax.random.normal(key, one.shape)

    moved = map(move, leaves, jax.tree.leaves(y), keys)
    return jax.tree.unflatten(structure, list(moved))


@final
class PolicyGradient(Emitter):
    """Emits elites after `policy_steps` gradient steps on the critic's value, and TD3's own actor
    (the greedy actor)."""

    def __init__(self, td3: TD3, spec: Spec, config: PGAMEConfig):
        self.size, self.td3, self._config = config.gradient_size, td3, config
        self._setup = td3, spec, config.generation_size  # a lane for each policy
        self._buffer = make_buffer(*self._setup)
        self.metric_names = metric_names(*self._setup)

    def init(self, key: Key) -> LearnerState:
        return init_learner(*self._setup, key)

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
