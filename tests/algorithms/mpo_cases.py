"""Small MPO agents, and MPO once more: from the papers, in NumPy and float64."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.algorithms import by_hand
from tests.algorithms.algorithm_cases import SPEC, changed, compiled, make_batch, mapped, settled
from understudy.algorithms.mpo import MPO, MPOConfig, mpo
from understudy.types import ArraySpec, Discrete, Spec

KEY = jax.random.PRNGKey(0)
DISCRETE = Spec(ArraySpec((3,)), Discrete(4))
SPECS = {"continuous": SPEC, "discrete": DISCRETE}
SAMPLES = 5
SMALL: dict[str, Any] = dict(
    hidden_sizes=(4, 4),
    activation="tanh",
    learning_rate=1e-2,
    sample_action_num=SAMPLES,
    initial_std=0.6,
    num_critics=3,
)
# of next observations and of observations, in the order they are drawn
NOISE = np.random.default_rng(3).normal(size=(2, 8, SAMPLES, 2))

both = pytest.mark.parametrize("kind", ["continuous", "discrete"])


def batch_of(kind, size=8, seed=0):
    batch = make_batch(size, seed)
    if kind == "continuous":
        return batch
    choices = np.random.default_rng(seed).integers(4, size=size)
    return batch._replace(action=jnp.asarray(choices, jnp.int32))


class Case:
    def __init__(self, kind, **settings):
        self.kind = kind
        self.algorithm: Any = MPO(MPOConfig(**{**SMALL, **settings}))
        state = settled(self.algorithm.init(SPECS[kind], KEY))
        # as after some training: a deviation that differs by state and dimension, and targets
        # that are not their networks
        shift = np.random.default_rng(1)
        actor = mapped(lambda x: x + shift.normal(0, 0.2, x.shape).astype("f"), state.params.actor)
        self.state = changed(
            state,
            actor=actor,
            target_actor=mapped(lambda x: np.float32(0.1) + np.float32(0.8) * x, actor),
            target_critic=mapped(
                lambda x: np.float32(0.2) - np.float32(1.5) * x, state.params.critic
            ),
        )
        self._policy = jax.jit(lambda actor, observation: actor(observation))
        mask = self.algorithm.update_mask
        self._gradients = jax.jit(lambda s, b, k, i: self.algorithm.gradients(s, b, k, mask(i)))
        self._update = jax.jit(lambda s, b, k, i: self.algorithm.update(s, b, k, mask(i)))

    def gradients(self, state=None, batch=None, key=KEY, index=0):
        state = self.state if state is None else state
        batch = batch_of(self.kind) if batch is None else batch
        return self._gradients(state, batch, key, jnp.int32(index))

    def update(self, state=None, batch=None, key=KEY, index=0):
        state = self.state if state is None else state
        batch = batch_of(self.kind) if batch is None else batch
        return self._update(state, batch, key, jnp.int32(index))

    def ask(self, method, *inputs, state=None):
        """What a method of the algorithm answers about observations (and actions)."""
        return compiled(self.algorithm, method)(self.state if state is None else state, *inputs)

    def policy_at(self, observation):
        """The distribution over actions, before they are put in their bounds."""
        return self._policy(self.state.params.actor, observation)

    def with_hyper(self, **values):
        hyper = {name: jnp.float32(value) for name, value in values.items()}
        return self.state._replace(hyper={**self.state.hyper, **hyper})


@cache
def case(kind, **settings) -> Case:
    return Case(kind, **settings)


# Of most tests: one program serves them all.
RICH: dict[str, Any] = dict(
    critic_subset=2,
    penalize_actions=True,
    target_update_interval=3,
    tau=1.0,
    max_mean_multiplier=1.5,
    max_var_multiplier=12.0,
    max_multiplier=3.0,
)


def known_noise(patch):
    """Draws in the order of asking: for next observations first."""
    asked = []

    def known(key, row, size):
        asked.append(key)
        return jnp.asarray(NOISE[(len(asked) - 1) % 2].reshape(8, size), jnp.float32)

    patch.setattr(mpo, "row_normals", known)


@cache
def computed(kind, penalize=False):
    """A fresh case, its gradients and what they tell, under the known noise."""
    made = Case(kind, penalize_actions=penalize)
    with pytest.MonkeyPatch.context() as patch:
        known_noise(patch)
        gradients, aux = made.gradients()
    return made.state, gradients, aux


# -- the same once more, from the papers, in NumPy and float64 -----------------------------------


def softplus(x):
    return np.logaddexp(0.0, x)


def normal(actor, observation):
    mean, spread = np.split(by_hand.network(actor, observation), 2, -1)
    return np.tanh(mean), 1e-4 + (1 - 1e-4) / (1 + np.exp(-spread))


def chances(actor, observation):
    logits = by_hand.network(actor, observation)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def smallest_q(critics, observation, action):
    """Of each of the draws [batch, samples, action], as they would be done."""
    rows = [
        by_hand.all_q(critics, observation, np.clip(action[:, j], -1, 1)).min(0)
        for j in range(action.shape[1])
    ]
    return np.stack(rows, 1)


def choices_q(critics, observation):
    members = range(len(critics[0]))
    each = [by_hand.network([w[i] for w in critics], observation) for i in members]
    return np.stack(each)


def considered(kind, state, observation, noise):
    """Prior weights, values and draws of the targets, [batch, options]."""
    actor, critics = (by_hand.numbers(x) for x in (state.targets.actor, state.targets.critic))
    if kind == "discrete":
        return chances(actor, observation), choices_q(critics, observation).min(0), None
    mean, std = normal(actor, observation)
    action = mean[:, None] + std[:, None] * noise
    return np.full(noise.shape[:2], 1 / SAMPLES), smallest_q(critics, observation, action), action


def tilted(prior, q, temperature):
    tilt = prior * np.exp((q - q.max(1, keepdims=True)) / temperature)
    return tilt / tilt.sum(1, keepdims=True)


def dual(temperature, prior, q, epsilon, weight):
    top = q.max(1)
    inner = np.log(np.sum(prior * np.exp((q - top[:, None]) / temperature), 1))
    return temperature * epsilon + np.mean(weight * (top + temperature * inner))


def outside(action):
    return -np.linalg.norm(action - np.clip(action, -1, 1), axis=-1)


def divergences(kind, state, actor, batch):
    """Weighted means over the batch of the closed forms, by name."""
    old = by_hand.numbers(state.targets.actor)
    if kind == "discrete":
        p, q = chances(old, batch.observation), chances(actor, batch.observation)
        return {"kl": np.mean(batch.weight * np.sum(p * np.log(p / q), 1))}
    (m0, s0), (m1, s1) = normal(old, batch.observation), normal(actor, batch.observation)
    weight = batch.weight[:, None]
    change = np.log(s1 / s0) + s0**2 / (2 * s1**2) - 0.5
    return {
        "kl_mean": np.mean(weight * (m1 - m0) ** 2 / (2 * s0**2), 0),
        "kl_var": np.mean(weight * change, 0),
    }


def actor_loss(kind, state, actor, batch, improved, action):
    old, duals = by_hand.numbers(state.targets.actor), state.params.duals
    if kind == "discrete":
        fit = np.sum(improved * np.log(chances(actor, batch.observation)), 1)
    else:
        (m0, s0), (m1, s1) = normal(old, batch.observation), normal(actor, batch.observation)
        moved = stats.norm(m1[:, None], s0[:, None]).logpdf(action).sum(-1)
        spread = stats.norm(m0[:, None], s1[:, None]).logpdf(action).sum(-1)
        fit = np.sum(improved * (moved + spread), 1)
    price = sum(
        np.sum(softplus(np.asarray(duals[name], np.float64)) * kl)
        for name, kl in divergences(kind, state, actor, batch).items()
    )
    return -np.mean(batch.weight * fit) + price


def agree(got, want):
    got = by_hand.numbers(got)
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=3e-3, atol=3e-5)
