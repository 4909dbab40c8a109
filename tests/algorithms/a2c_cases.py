"""Small A2Cs and PPOs with their compiled functions, and A2C's policies and losses once more in
NumPy."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms.algorithm_cases import KEY, changed, compiled, mapped, settled
from tests.algorithms.by_hand import network
from understudy.algorithms.a2c import A2C
from understudy.types import ArraySpec, Continuous, Discrete, MultiDiscrete, Spec, Trajectory

OBSERVATION = ArraySpec((3,))
SPECS = {
    "discrete": Spec(OBSERVATION, Discrete(3)),
    "multi": Spec(OBSERVATION, MultiDiscrete((2, 3), (0, 0), (2,))),
    "gaussian": Spec(OBSERVATION, Continuous((-np.inf,) * 2, (np.inf,) * 2, (2,))),
    "gsde": Spec(OBSERVATION, Continuous((-1.0,) * 2, (1.0,) * 2, (2,))),
}
SMALL: dict[str, Any] = dict(
    hidden_sizes=(4, 4), learning_rate=1e-2, entropy_coeff=0.3, value_coeff=0.7, gamma=0.9
)
every_kind = pytest.mark.parametrize("kind", list(SPECS))


class Case:
    """A small A2C (or PPO) with its functions compiled once. Its head is not near zero, as the
    real one is: every weight shall matter."""

    def __init__(self, kind, loss_addons=(), networks=None, algorithm: Any = A2C, **settings):
        self.spec = SPECS[kind]
        config = algorithm.config_class(
            **{**SMALL, "state_dependent_exploration": kind == "gsde", **settings}
        )
        self.algorithm = algorithm(config, loss_addons=loss_addons, networks=networks)
        state = settled(self.algorithm.init(self.spec, KEY))
        rng = np.random.default_rng(7)
        actor, critic = mapped(
            lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32),
            (state.params.actor, state.params.critic),
        )
        self.state = changed(state, actor=actor, critic=critic)
        self.prepare = compiled(self.algorithm, "prepare")
        self.apply = compiled(self.algorithm, "apply")
        self.act = compiled(self.algorithm, "act")
        self._mode = jax.jit(lambda actor, observation: actor.mode(observation))
        mask = self.algorithm.update_mask(0)
        self._gradients = jax.jit(lambda s, b, k: self.algorithm.gradients(s, b, k, mask))
        self._update = jax.jit(lambda s, b, k: self.algorithm.update(s, b, k, mask))

    def batch(self):
        return self.prepare(self.state, self.rollout())

    def ask(self, method, *inputs, state=None):
        """What a method of the algorithm answers about observations (and actions)."""
        return compiled(self.algorithm, method)(self.state if state is None else state, *inputs)

    def mode(self, observation):
        return self._mode(self.state.params.actor, observation)

    def with_hyper(self, **values):
        hyper = {name: jnp.float32(value) for name, value in values.items()}
        return self.state._replace(hyper={**self.state.hyper, **hyper})

    def gradients(self, batch=None, state=None):
        state = self.state if state is None else state
        return self._gradients(state, self.batch() if batch is None else batch, KEY)

    def update(self, batch=None, state=None):
        state = self.state if state is None else state
        return self._update(state, self.batch() if batch is None else batch, KEY)

    def rollout(self, time=6, envs=2):
        """Steps of which one is truncated and one terminated. Most tests take rollouts of this
        size, so that they share programs."""
        rng = np.random.default_rng(0)

        def normal(*shape):
            return jnp.asarray(rng.normal(size=(time, envs, *shape)), jnp.float32)

        last, terminated = np.zeros((2, time, envs), bool)
        last[time // 2, 0] = last[time // 3, -1] = terminated[time // 3, -1] = True
        action: Any = normal(2)
        if isinstance(self.spec.action, Discrete):
            action = jnp.asarray(rng.integers(0, 3, (time, envs)), jnp.int32)
        elif isinstance(self.spec.action, MultiDiscrete):
            action = jnp.asarray(rng.integers(0, (2, 3), (time, envs, 2)), jnp.int32)
        steps = Trajectory(
            observation=normal(3),
            action=action,
            reward=normal(),
            discount=jnp.asarray(0.9 * ~terminated, jnp.float32),
            last=jnp.asarray(last),
            next_observation=normal(3),
            valid=jnp.ones((time, envs), bool),
        )
        if not self.algorithm.needs.extras:
            return steps
        rows = (x.reshape(time * envs, *x.shape[2:]) for x in (steps.observation, action))
        return steps._replace(extras={"log_prob": self.ask("log_prob", *rows).reshape(time, envs)})


@cache
def case(kind, **settings) -> Case:
    return Case(kind, **settings)


def by_hand_policy(kind, weights, frozen, observation, action):
    """Log-probability and entropy. `frozen` are the weights whose features spread gSDE's noise."""
    if kind in ("gaussian", "gsde"):
        *layers, log_std = weights
        mean = network(layers, observation)
        variance = np.exp(2 * log_std)
        if kind == "gsde":
            features = observation
            for w, b in zip(frozen[:-3:2], frozen[1:-3:2], strict=True):
                features = np.tanh(features @ w + b)
            variance = features**2 @ variance + 1e-6
        variance = np.broadcast_to(variance, mean.shape)
        density = np.exp(-((action - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
        entropy = 0.5 * np.log(2 * np.pi * np.e * variance).sum(-1)
        return np.log(density).sum(-1), entropy
    logits = network(weights, observation)
    log_prob, entropy, start = 0.0, 0.0, 0
    chosen = action.reshape(len(action), -1)
    for factor, choices in enumerate((3,) if kind == "discrete" else (2, 3)):
        odds = np.exp(logits[:, start : start + choices])
        p = odds / odds.sum(-1, keepdims=True)
        log_prob = log_prob + np.log(p[np.arange(len(p)), chosen[:, factor]])
        entropy = entropy - (p * np.log(p)).sum(-1)
        start += choices
    return log_prob, entropy


def by_hand_loss(kind, actor, critic, frozen, batch, shared=False):
    observation = np.asarray(batch.observation, np.float64)
    log_prob, entropy = by_hand_policy(kind, actor, frozen, observation, np.asarray(batch.action))
    advantage, target = (np.asarray(x, np.float64) for x in (batch.advantage, batch.value_target))
    value = network(actor[:4] + critic if shared else critic, observation)[:, 0]
    weight = np.asarray(batch.weight, np.float64)
    policy = np.mean(-weight * advantage * log_prob)
    error = np.mean(weight * (target - value) ** 2)
    return policy, error, -np.mean(weight * entropy)
