"""Small agents with their compiled functions, shared by the tests of one process."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from understudy.agent.inference import Inference
from understudy.algorithms import normalization
from understudy.algorithms.sac import SAC, SACConfig
from understudy.algorithms.td3 import TD3, TD3Config
from understudy.types import ArraySpec, Batch, Continuous, Spec

SPEC = Spec(ArraySpec((3,)), Continuous((-1.0,) * 2, (1.0,) * 2, (2,)))
KEY = jax.random.PRNGKey(0)
KINDS = {"td3": (TD3, TD3Config), "sac": (SAC, SACConfig)}
# tanh: smooth, and no unit is ever dead, so that every weight has a gradient
SMALL: dict[str, Any] = dict(hidden_sizes=(4, 4), activation="tanh", learning_rate=1e-2)


def make_batch(size=8, seed=0):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return Batch(
        observation=normal(size, 3),
        action=jnp.asarray(np.tanh(rng.normal(size=(size, 2))), jnp.float32),
        reward=normal(size),
        discount=jnp.asarray(rng.choice([0.0, 0.9, 0.81], size=size), jnp.float32),
        next_observation=normal(size, 3),
        weight=jnp.asarray(rng.uniform(0.5, 1.5, size=size), jnp.float32),
        row=jnp.asarray(np.arange(size), jnp.int32),
    )


# The helpers below compute in NumPy or in one compiled program: JAX compiles every single operation
# outside of `jit`, once for each shape.


def mapped(function, *trees):
    """`jax.tree.map` of a NumPy function; the leaves of the answer are JAX arrays."""
    return jax.tree.map(lambda *leaves: jnp.asarray(function(*map(np.asarray, leaves))), *trees)


def settled(state):
    """The same arrays with the types that an update returns: a weak type would make `jit` compile
    the next update anew."""
    return mapped(lambda x: x, state)


def shards_of(batch, size=4):
    """The first rows and the next ones, as batches of their own."""
    return [mapped(lambda x, s=start: x[s : s + size], batch) for start in (0, size)]


def gaps_and_steps(batch):
    """A prepared batch of which every second row is no step, and its steps as a batch."""
    gaps = batch._replace(weight=jnp.asarray(np.tile([2.0, 0.0], len(batch.row) // 2), jnp.float32))
    steps = mapped(lambda x: x[::2], batch)
    return gaps, steps._replace(weight=jnp.ones(len(batch.row) // 2))


def copies_of(batch, row=1, count=8):
    """One transition many times, in rows of their own."""
    copies = mapped(lambda x: np.repeat(x[row : row + 1], count, axis=0), batch)
    return copies._replace(discount=jnp.ones(count), row=jnp.asarray(np.arange(count), jnp.int32))


STATIC = {"act": 5, "memory": 1}  # arguments that are no arrays


@cache
def compiled(algorithm, method):
    """A method of an algorithm as one program."""
    return jax.jit(getattr(algorithm, method), static_argnums=STATIC.get(method, ()))


def query(algorithm, spec, method, state, *inputs):
    """What an agent answers by a method, about raw observations (and actions)."""
    observation, action = (*inputs, None)[:2]
    return Inference(algorithm, spec).query(method, state, observation, action)


_update_normalizer = jax.jit(normalization.update_normalizer)


def observed(state, rows, open_return=None):
    """The state with these observations (and returns) in its running statistics."""
    open_return = jnp.zeros(len(rows)) if open_return is None else open_return
    valid = jnp.ones(len(rows), bool)
    return state._replace(normalizer=_update_normalizer(state.normalizer, rows, open_return, valid))


def parts_of(state):
    """Every part of a state under one name: actor, target_actor, actor_optimizer, hyper …"""
    parts = dict(state.params._asdict())
    targets = {name: tree for name, tree in state.targets._asdict().items() if tree is not None}
    parts |= {f"target_{name}": target for name, target in targets.items()}
    parts |= {f"{name}_optimizer": own for name, own in state.opt_state.items()}
    rest = ("normalizer", "hyper", "updates", "key")
    return parts | {name: getattr(state, name) for name in rest}


def changed(state, **parts):
    """A state with other parts: params by their names, targets as `target_…`."""
    params = {name: parts.pop(name) for name in list(parts) if name in state.params._fields}
    targets = {
        name.removeprefix("target_"): parts.pop(name)
        for name in list(parts)
        if name.startswith("target_")
    }
    return state._replace(
        params=state.params._replace(**params), targets=state.targets._replace(**targets), **parts
    )


def distinct_targets(state):
    """A state as after some training: targets that are not their networks."""

    def shifted(tree):
        return mapped(lambda x: np.float32(0.2) - np.float32(1.5) * x, tree)

    state = settled(state)
    return state._replace(targets=type(state.targets)(*map(shifted, state.targets)))


class Case:
    """One algorithm with small networks, its first state, and its functions compiled once."""

    def __init__(self, name, loss_addons=(), **settings):
        algorithm, config = KINDS[name]
        self.name = name
        self.algorithm: Any = algorithm(
            config(**{**SMALL, "num_critics": 3, **settings}), loss_addons=loss_addons
        )
        self.state = distinct_targets(self.algorithm.init(SPEC, KEY))
        self._answer = jax.jit(lambda actor, observation: actor(observation))
        mask = self.algorithm.update_mask
        self.raw_gradients = lambda s, b, k, i: self.algorithm.gradients(s, b, k, mask(i))
        self.raw_update = lambda s, b, k, i: self.algorithm.update(s, b, k, mask(i))
        self._gradients = jax.jit(self.raw_gradients)
        self._update = jax.jit(self.raw_update)
        self.apply = compiled(self.algorithm, "apply")

    def gradients(self, state=None, batch=None, key=KEY, index=0):
        state = self.state if state is None else state
        batch = make_batch() if batch is None else batch
        return self._gradients(state, batch, key, jnp.int32(index))

    def update(self, state=None, batch=None, key=KEY, index=0):
        state = self.state if state is None else state
        batch = make_batch() if batch is None else batch
        return self._update(state, batch, key, jnp.int32(index))

    def ask(self, method, *inputs):
        """What a method of the algorithm answers about observations (and actions)."""
        return compiled(self.algorithm, method)(self.state, *inputs)

    def answer(self, observation):
        """Of the actor."""
        return jax.device_get(self._answer(self.state.params.actor, observation))

    def with_hyper(self, **values):
        hyper = {name: jnp.float32(value) for name, value in values.items()}
        return self.state._replace(hyper={**self.state.hyper, **hyper})


@cache
def case(name, **settings) -> Case:
    return Case(name, **settings)


def same(one, two) -> bool:
    """Bit for bit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all(np.array_equal(x, y, equal_nan=True) for x, y in pairs)


def close(one, two, tolerance):
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
