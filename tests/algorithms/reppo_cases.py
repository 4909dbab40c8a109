"""A small REPPO with its functions compiled once, and its losses once more in NumPy and float64."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_softmax
from scipy.stats import norm

from tests.algorithms.algorithm_cases import KEY, SPEC, changed, compiled, mapped, settled
from tests.algorithms.by_hand import network, numbers, squashed
from understudy.algorithms.reppo import REPPO, REPPOConfig
from understudy.types import ArraySpec, Discrete, Spec, Trajectory

CHOICES, TIME, ENVS = 3, 6, 2
CHOOSING = Spec(ArraySpec((3,)), Discrete(CHOICES))
# tanh without LayerNorm: the networks that tests/algorithms/by_hand.py computes
SMALL: dict[str, Any] = dict(
    hidden_sizes=(4, 4), activation="tanh", layer_norm=False, learning_rate=1e-2, gamma=0.9,
    q_lambda=0.7, kl_bound=0.05, initial_temperature=0.3, initial_multiplier=2.0,
    normalize_observations=False, normalize_rewards=False, return_limit=None, num_atoms=7,
    min_return=-3.0, max_return=3.0,
)  # fmt: skip
ATOMS, DISTANCE, SIGMA = np.linspace(-3.0, 3.0, 7), 1.0, 0.75


def make_rollout(discrete=False, valid=None):
    """Steps of which one is truncated and one terminated."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=(TIME, ENVS, *shape)), jnp.float32)

    last, terminated = np.zeros((2, TIME, ENVS), bool)
    last[3, 0] = last[2, 1] = terminated[2, 1] = True
    choice = jnp.asarray(rng.integers(0, CHOICES, (TIME, ENVS)), jnp.int32)
    return Trajectory(
        observation=normal(3),
        action=choice if discrete else jnp.tanh(normal(2)),
        reward=normal(),
        discount=jnp.asarray(0.9 * ~terminated, jnp.float32),
        last=jnp.asarray(last),
        next_observation=normal(3),
        valid=jnp.ones((TIME, ENVS), bool) if valid is None else jnp.asarray(valid),
    )


class Made:
    """A small REPPO, and weights that all matter."""

    def __init__(self, discrete, config):
        self.discrete, self.spec = discrete, CHOOSING if discrete else SPEC
        self.algorithm = REPPO(REPPOConfig(**{**SMALL, **config}))
        state, rng = settled(self.algorithm.init(self.spec, KEY)), np.random.default_rng(7)

        def moved(tree):  # half as large: tanh of a sampled action is not 1 in float32
            noise = rng.normal
            return mapped(lambda x: 0.5 * x + 0.3 * noise(size=x.shape).astype(np.float32), tree)

        params = state.params
        self.state = changed(state, actor=moved(params.actor), critic=moved(params.critic))
        self.prepare = compiled(self.algorithm, "prepare")
        mask = self.algorithm.update_mask(0)
        self._gradients = jax.jit(lambda s, b: self.algorithm.gradients(s, b, KEY, mask))
        self.update = jax.jit(lambda s, b: self.algorithm.update(s, b, KEY, mask))

    def batch(self, rollout=None):
        rollout = make_rollout(self.discrete) if rollout is None else rollout
        return self.prepare(self.state, rollout)

    def after_updates(self):
        """The state with another policy than the one that acted."""
        rng, distance = np.random.default_rng(3), np.float32(0.2)
        actor = mapped(
            lambda x: x + distance * rng.normal(size=x.shape).astype(np.float32),
            self.state.params.actor,
        )
        return changed(self.state, actor=actor)

    def gradients(self, batch=None, state=None):
        batch = self.batch() if batch is None else batch
        return self._gradients(self.after_updates() if state is None else state, batch)


@cache
def made(discrete=False, **config) -> Made:
    return Made(discrete, config)


# -- by hand ----------------------------------------------------------------------------------


def actor_weights(state):
    return numbers(state.params.actor)


def critic_weights(state):
    return [weight[0] for weight in numbers(state.params.critic)]


def outputs(critic, observation, action=None):
    """The outputs of the critic's head, of every choice for discrete actions."""
    if action is None:
        return network(critic, observation)
    return network(critic, np.concatenate([observation, action], -1))


def q_of(critic, observation, action=None):
    """Q(s, a), or Q(s, ·)."""
    logits = outputs(critic, observation, action)
    if logits.shape[-1] in (1, CHOICES):  # a scalar critic
        return logits if action is None else logits[:, 0]
    logits = logits.reshape(len(logits), -1, len(ATOMS))
    q = np.exp(log_softmax(logits, -1)) @ ATOMS
    return q if action is None else q[:, 0]


def worth(actor, critic, observation, noise):
    """Q and log π of a sampled action, or their expectations."""
    if noise is None:
        log_p = log_softmax(network(actor, observation), -1)
        p = np.exp(log_p)
        return (p * q_of(critic, observation)).sum(-1), (p * log_p).sum(-1)
    action, log_prob = squashed(network(actor, observation), noise)
    return q_of(critic, observation, action), log_prob


def kl(old, new):
    """KL(old ‖ new) of the outputs of two actors."""
    if old.shape[-1] == CHOICES:
        log_p, log_q = log_softmax(old, -1), log_softmax(new, -1)
        return (np.exp(log_p) * (log_p - log_q)).sum(-1)
    (mean_p, log_p), (mean_q, log_q) = (np.split(both, 2, -1) for both in (old, new))
    var_p, var_q = np.exp(2 * log_p), np.exp(2 * log_q)
    return (log_q - log_p + (var_p + (mean_p - mean_q) ** 2) / (2 * var_q) - 0.5).sum(-1)


def histogram(target):
    """HL-Gauss: what a Gaussian around each target puts within half a distance of each atom."""
    mass = []
    for center in np.clip(target, ATOMS[0], ATOMS[-1]):
        edges = norm(center, SIGMA * DISTANCE).cdf(np.append(ATOMS, 4.0) - DISTANCE / 2)
        mass.append(np.diff(edges) / (edges[-1] - edges[0]))
    return np.array(mass)
