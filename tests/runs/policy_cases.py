"""Small policies of every kind, as after some training, and what `agent.act` makes of them."""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from understudy.algorithms import find
from understudy.algorithms.ddqn.losses import mean_q
from understudy.algorithms.running import normalised
from understudy.envs.spaces import to_real
from understudy.nets import Moments, Networks
from understudy.runs.describe import describe
from understudy.types import ArraySpec, Continuous, Discrete, MultiDiscrete, Spec

OBSERVATION = 3
LOPSIDED = Continuous((-1.0, 0.25), (7.0, 0.5), (2,))
UNIT = Continuous((-1.0,) * 2, (1.0,) * 2, (2,))
ROUGH = Continuous((-0.1, 1 / 3, -2.0, 5.0), (0.3, 2 / 3, -1.0, 5.0), (2, 2))  # not float32's own
UNBOUNDED = Continuous((-np.inf,) * 2, (np.inf,) * 2, (2,))
HALF_BOUNDED = Continuous((0.0, -np.inf), (np.inf, 0.5), (2,))
CHOICE, PAIR = Discrete(4, start=-2), MultiDiscrete((2, 5), (0, 3), (2,))
GRID = MultiDiscrete((2, 3, 2, 4), (0, 1, -1, 0), (2, 2))

KINDS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "TD3": ("td3", LOPSIDED, {}),
    "TD3 normalised": ("td3", ROUGH, dict(normalise_observations=True, activation="gelu")),
    "TD3 in [-1, 1]": ("td3", UNIT, dict(hidden_sizes=(5, 7, 3), activation="tanh")),
    "DDPG": ("ddpg", LOPSIDED, dict(activation="elu", normalise_observations=True)),
    "DDPG, lingering noise": ("ddpg", UNIT, dict(noise="ornstein_uhlenbeck")),
    "SAC": ("sac", LOPSIDED, dict(activation="silu", normalise_observations=True)),
    "SAC, linear": ("sac", ROUGH, dict(hidden_sizes=())),
    "SAC discrete": ("sac", CHOICE, dict(normalise_observations=True)),
    "DDQN": ("ddqn", CHOICE, dict(layer_norm=True, initial_epsilon=0.4)),
    "DDQN dueling": ("ddqn", CHOICE, dict(dueling=True, hidden_sizes=(6, 5))),
    "DDQN, three critics": (
        "ddqn",
        CHOICE,
        dict(dueling=True, num_critics=3, layer_norm=True, normalise_observations=True),
    ),
    "A2C categorical": ("a2c", CHOICE, dict(share_encoder=True)),
    "A2C pair": ("a2c", PAIR, dict(normalise_observations=True)),
    "A2C grid": ("a2c", GRID, dict(activation="relu")),
    "A2C Gaussian": ("a2c", UNBOUNDED, dict(normalise_observations=True)),
    "A2C half bounded": ("a2c", HALF_BOUNDED, dict(activation="gelu")),
    "A2C gSDE": (
        "a2c",
        LOPSIDED,
        dict(state_dependent_exploration=True, normalise_observations=True),
    ),
    "MPO": ("mpo", LOPSIDED, dict(normalise_observations=True)),
    "MPO discrete": ("mpo", CHOICE, dict(activation="silu")),
}


class Case(NamedTuple):
    algorithm: Any
    policy: Any
    spec: Spec

    def act(self, observation, key=None):
        """What `agent.act` answers; with a key, while exploring."""
        explore = key is not None
        key = jax.random.PRNGKey(0) if key is None else key
        memory = self.algorithm.memory(self.policy, len(observation))
        first = jnp.ones(len(observation), bool)
        act = jax.jit(self.algorithm.act, static_argnums=5)
        action = act(self.policy, memory, jnp.asarray(observation), first, key, explore)[0]
        return to_real(np.asarray(action), self.spec)

    def describe(self):
        return describe(self.algorithm, self.policy, self.spec, {"env": "Test-v0"})

    def scores(self, observation):
        """What the choices of a discrete policy are worth to it: one [rows, n] per choice."""
        seen = normalised(self.policy.seen, jnp.asarray(observation))
        if hasattr(self.policy, "critic"):
            return [np.asarray(mean_q(self.policy.critic, seen))]
        logits = self.policy.actor(seen).logits
        return [np.asarray(own) for own in (logits if isinstance(logits, tuple) else (logits,))]


def make(name, action, settings, networks=None) -> Case:
    algorithm = find(name)
    config = algorithm.config_class(**{"hidden_sizes": (8,), **settings})
    built = algorithm(config, networks=networks or Networks())
    spec = Spec(ArraySpec((OBSERVATION,)), action)
    rng = np.random.default_rng(len(settings))

    def trained(leaf):
        return leaf + jnp.asarray(0.4 * rng.normal(size=leaf.shape), leaf.dtype)

    policy = built.policy(built.init(spec, jax.random.PRNGKey(1)))
    field = "critic" if hasattr(policy, "critic") else "actor"
    policy = policy._replace(**{field: jax.tree.map(trained, getattr(policy, field))})
    if policy.seen is not None:
        mean, variance = rng.normal(size=OBSERVATION), rng.uniform(0.04, 9.0, OBSERVATION)
        rest = jnp.full(OBSERVATION, 1e-8)
        policy = policy._replace(
            seen=Moments(jnp.int32(99), jnp.float32(mean), jnp.float32(variance), rest)
        )
    return Case(built, policy, spec)


@cache
def case(kind) -> Case:
    return make(*KINDS[kind])


def observations(rows=1000, seed=0):
    """Ordinary ones, and every tenth far out, where normalisers clip and tanh saturates."""
    seen = np.random.default_rng(seed).normal(size=(rows, OBSERVATION))
    seen[::10] *= 50.0
    return seen.astype(np.float32)


def assert_agree(case, action, seen):
    """Continuous: within 1e-5 of the bounds' width (of the action, where there are none and it is
    above 1). Discrete: the
    same choice, except where the two are worth the same to the policy within 1e-6 (of the
    largest worth, if that is above 1), which may happen in one row of a hundred."""
    expected = case.act(seen)
    assert action.shape == expected.shape and action.dtype == expected.dtype
    bounds = case.spec.action
    if isinstance(bounds, Continuous):
        low, high = np.array(bounds.low), np.array(bounds.high)
        size = np.maximum(1.0, np.abs(expected).reshape(len(seen), -1))
        width = np.where(np.isfinite(high - low) & (high > low), high - low, size)
        apart = np.abs(action - expected).reshape(len(seen), -1) / width
        assert apart.max() < 1e-5
        assert (action.reshape(len(seen), -1) >= low).all()
        assert (action.reshape(len(seen), -1) <= high).all()
        return
    starts = bounds.start if isinstance(bounds, Discrete) else np.array(bounds.starts)
    ours, theirs = ((x.reshape(len(seen), -1) - starts) for x in (action, expected))
    assert (ours != theirs).mean() < 0.01
    for place, worth in enumerate(case.scores(seen)):
        chosen = [np.take_along_axis(worth, x[:, place : place + 1], 1) for x in (ours, theirs)]
        assert (np.abs(chosen[0] - chosen[1]) <= 1e-6 * max(1.0, np.abs(worth).max())).all()
