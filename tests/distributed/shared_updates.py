"""Small learners with experience to learn from, for tests of updates that are shared."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from understudy.algorithms import find
from understudy.training.initialization import init_learner
from understudy.training.learner import updates
from understudy.training.seed_axis import over_seeds
from understudy.training.setup import TrainingSetup
from understudy.types import ArraySpec, Chunk, Continuous, Discrete, Spec, Step

MOVING = Spec(ArraySpec((3,)), Continuous((-1.0,) * 2, (1.0,) * 2, (2,)))
CHOOSING = Spec(ArraySpec((3,)), Discrete(3))
SMALL = dict(hidden_sizes=(8,), learning_rate=1e-3)
RING = dict(batch_size=12, buffer_size=40, start_steps=0, min_buffer_size=8)
LANES = 4


def make_setup(name, members=2, **settings):
    cls = find(name)
    ring = {} if name in ("a2c", "pqn", "reppo") else RING
    algorithm = cls(cls.config_class(**{**SMALL, **ring, **settings}))
    spec = CHOOSING if name in ("ddqn", "a2c", "pqn") else MOVING
    return TrainingSetup(algorithm, spec, seed=0, num_seeds=members, num_envs=LANES)


def make_learner(setup):
    algorithm, spec = setup.algorithm, setup.spec
    keys = jax.random.split(jax.random.PRNGKey(setup.seed), setup.num_seeds)
    return jax.jit(jax.vmap(partial(init_learner, algorithm, spec, LANES)))(keys)


def make_experience(setup, steps=8):
    """The same number of steps for everyone, with some ends of episodes among them."""
    rng = np.random.default_rng(0)
    lead = (steps, setup.num_seeds, LANES)
    if isinstance(setup.spec.action, Discrete):
        action = rng.integers(0, setup.spec.action.n, lead).astype(np.int32)
    else:
        action = np.tanh(rng.normal(size=(*lead, 2))).astype(np.float32)
    ended = rng.uniform(size=lead) < 0.2
    all_steps = Step(
        observation=rng.normal(size=(*lead, 3)).astype(np.float32),
        action=action,
        reward=rng.normal(size=lead).astype(np.float32),
        terminated=ended & (rng.uniform(size=lead) < 0.5),
        last=ended,
        next_observation=rng.normal(size=(*lead, 3)).astype(np.float32),
    )
    memory = getattr(setup.algorithm.config, "memory_width", 0)
    remembered = rng.normal(size=(*lead, memory)).astype(np.float32) if memory else None

    buffer, valid = setup.buffer, np.ones((steps, LANES), bool)

    def fill(steps, remembered):
        return buffer.add(buffer.init(), Chunk(steps, jnp.asarray(valid), remembered))

    return jax.jit(jax.vmap(fill, in_axes=1))(all_steps, remembered)


def in_one_process(setup, learner, experience, first_index, count):
    """What everything else is compared with: learner and priorities."""
    index = jnp.int32(first_index)
    one = partial(updates, setup.algorithm, setup.buffer, first_index=index, count=count)
    return jax.jit(over_seeds(one, setup.num_seeds))(learner, experience)


def close(one, two, tolerance=1e-5):
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
