"""Polyak averaging, bootstrapping and the pessimism of several critics."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from understudy.ops.targets import bootstrapped, pessimistic, polyak

average = jax.jit(polyak)
weights = arrays(np.float32, 5, elements=st.floats(-1e3, 1e3, width=32))


@given(weights, weights, st.floats(0, 1, width=32))
def test_polyak_is_the_convex_combination(old, new, tau):
    got = average(old, new, jnp.float32(tau))
    want = (1 - tau) * old.astype(np.float64) + tau * new.astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)


def test_polyak_moves_the_target_and_every_leaf_of_it():
    target = {"a": jnp.zeros(2), "b": (jnp.ones(1),)}
    online = {"a": jnp.ones(2), "b": (3 * jnp.ones(1),)}
    got = average(target, online, jnp.float32(0.25))  # a quarter of the way, not three quarters
    np.testing.assert_allclose(got["a"], [0.25, 0.25])
    np.testing.assert_allclose(got["b"][0], [1.5])


def test_tau_one_is_a_hard_copy():
    """Bit for bit: old + 1·(new − old) is not `new` in floats when the two differ in size."""
    rng = np.random.default_rng(0)
    old = (rng.normal(size=1000) * 10.0 ** rng.integers(-3, 4, 1000)).astype(np.float32)
    new = (rng.normal(size=1000) * 10.0 ** rng.integers(-3, 4, 1000)).astype(np.float32)
    np.testing.assert_array_equal(average(old, new, jnp.float32(1.0)), new)
    np.testing.assert_array_equal(polyak(old, new, jnp.float32(1.0)), new)


def test_a_settled_target_stays_settled():
    """Where target and network agree, averaging must not drift."""
    same = jnp.asarray(np.random.default_rng(1).normal(size=1000), jnp.float32)
    moved = same
    for _ in range(50):
        moved = average(moved, same, jnp.float32(0.005))
    np.testing.assert_array_equal(moved, same)


def test_bootstrapping_knows_only_the_discount():
    got = bootstrapped(jnp.array([1.0, 1.0]), jnp.array([0.9, 0.0]), jnp.array([10.0, 10.0]))
    np.testing.assert_allclose(got, [10.0, 1.0])


def test_the_smallest_opinion_counts_row_by_row():
    q = jnp.array([[1.0, 5.0, -2.0], [2.0, 4.0, -3.0], [3.0, 6.0, -1.0]])
    np.testing.assert_array_equal(pessimistic(q), [1.0, 4.0, -3.0])
