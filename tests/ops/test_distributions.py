"""Distributions against scipy, against their own samples, and at the ends of what floats can do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from understudy.ops.distributions import Categorical, Gaussian, MultiCategorical

log_prob = jax.jit(lambda distribution, action: distribution.log_prob(action))
entropy = jax.jit(lambda distribution: distribution.entropy())
mode = jax.jit(lambda distribution: distribution.mode())
sample = jax.jit(lambda distribution, key: distribution.sample(key))

NEVER = -jnp.inf
vectors = arrays(np.float32, (4, 3), elements=st.floats(-2, 2, width=32))


def logits_of(choices, size=5.0):
    # XLA counts subnormal numbers as zero, NumPy does not: they would differ about the mode
    numbers = st.floats(-size, size, width=32, allow_subnormal=False)
    return arrays(np.float32, (4, choices), elements=numbers)


def many(distribution, count=100_000, seed=0):
    """Samples of one distribution (no batch axis), as [count, ...]."""
    keys = jax.random.split(jax.random.PRNGKey(seed), count)
    return np.asarray(jax.jit(jax.vmap(distribution.sample))(keys))


@given(vectors, vectors, vectors)
def test_gaussian_matches_scipy(mean, log_std, action):
    wide = [array.astype(np.float64) for array in (action, mean, np.exp(log_std))]
    want = scipy.stats.norm.logpdf(*wide).sum(axis=-1)
    got = log_prob(Gaussian(mean, log_std), action)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    spread = scipy.stats.norm.entropy(scale=wide[2]).sum(axis=-1)
    got = entropy(Gaussian(mean, log_std))
    np.testing.assert_allclose(got, spread, rtol=1e-5, atol=1e-5)


@given(vectors, vectors, vectors)
def test_a_spread_without_batch_axes_is_that_of_every_row(mean, log_std, action):
    shared = Gaussian(mean, log_std[0])
    repeated = Gaussian(mean, np.repeat(log_std[:1], 4, axis=0))
    assert entropy(shared).shape == (4,)
    for ask in (entropy, lambda d: log_prob(d, action), lambda d: sample(d, jax.random.PRNGKey(1))):
        np.testing.assert_allclose(ask(shared), ask(repeated), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(mode(shared), mean)


def test_gaussian_samples_have_its_law():
    drawn = np.asarray(many(Gaussian(jnp.array([1.0, -3.0]), jnp.log(jnp.array([0.5, 2.0])))))
    for column, mean, std in ((0, 1.0, 0.5), (1, -3.0, 2.0)):
        assert scipy.stats.kstest(drawn[:, column], "norm", (mean, std)).pvalue > 1e-3
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.015


def test_gaussian_samples_of_rows_differ_and_carry_gradients():
    def total(mean, log_std):
        return jnp.sum(Gaussian(mean, log_std).sample(jax.random.PRNGKey(0)))

    mean, log_std = jnp.zeros((4, 2)), jnp.full(2, -1.0)
    to_mean, to_log_std = jax.grad(total, (0, 1))(mean, log_std)
    drawn = sample(Gaussian(mean, log_std), jax.random.PRNGKey(0))
    assert len(np.unique(drawn)) == 8
    np.testing.assert_allclose(to_mean, 1.0)
    np.testing.assert_allclose(to_log_std, drawn.sum(axis=0), rtol=1e-5)  # dσε/dlogσ = σε


@given(logits_of(5, size=30.0), arrays(np.int32, 4, elements=st.integers(0, 4)))
def test_categorical_matches_scipy(logits, action):
    wide = scipy.special.log_softmax(logits.astype(np.float64), axis=-1)
    choice = Categorical(jnp.asarray(logits))
    got = log_prob(choice, action)
    np.testing.assert_allclose(got, wide[np.arange(4), action], rtol=1e-5, atol=1e-5)
    want = scipy.stats.entropy(np.exp(wide), axis=-1)
    np.testing.assert_allclose(entropy(choice), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(choice.probabilities, np.exp(wide), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(choice.log_probabilities, wide, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(mode(choice), logits.argmax(axis=-1))


def test_categorical_samples_have_its_law():
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    drawn = many(Categorical(jnp.log(jnp.asarray(shares, jnp.float32)) + 7.0))
    assert drawn.dtype == np.int32
    counted = np.bincount(drawn, minlength=4)
    assert scipy.stats.chisquare(counted, shares * drawn.size).pvalue > 1e-3


@pytest.mark.parametrize(
    ("logits", "bits"),
    [
        ([NEVER, 0.0, 0.0], 1.0),
        ([0.0, NEVER, NEVER], 0.0),
        ([0.0, 0.0, -1e30], 1.0),
        ([1e4, 0.0, -1e4], 0.0),
    ],
)
def test_choices_that_are_never_made_cost_nothing(logits, bits):
    def forward(logits):
        return Categorical(logits).entropy()

    value, gradient = jax.value_and_grad(forward)(jnp.array(logits))
    assert float(value) == pytest.approx(bits * np.log(2), abs=1e-6)
    assert np.all(np.isfinite(gradient))


def test_a_forbidden_choice_is_never_drawn():
    drawn = many(Categorical(jnp.array([0.0, NEVER, -1.0])), count=10_000)
    assert set(np.unique(drawn)) == {0, 2}


def test_the_entropys_gradient_by_hand():
    # dH/dl_i = -p_i (log p_i + H)
    p = np.array([0.2, 0.3, 0.5])
    spread = -(p * np.log(p)).sum()
    got = jax.grad(lambda logits: Categorical(logits).entropy())(jnp.log(jnp.asarray(p)))
    np.testing.assert_allclose(got, -p * (np.log(p) + spread), rtol=1e-4, atol=1e-6)


@given(
    logits_of(2),
    logits_of(3),
    arrays(np.int32, 4, elements=st.integers(0, 1)),
    arrays(np.int32, 4, elements=st.integers(0, 2)),
)
def test_several_choices_are_one_choice_of_all_combinations(left, right, a, b):
    """The joint law, written out: 6 combinations with the outer sum of the logits."""
    joint = (left.astype(np.float64)[:, :, None] + right[:, None, :]).reshape(4, 6)
    joint = scipy.special.log_softmax(joint, axis=-1)
    both = MultiCategorical((jnp.asarray(left), jnp.asarray(right)))
    action = np.stack([a, b], axis=-1)
    want = joint[np.arange(4), 3 * a + b]
    np.testing.assert_allclose(log_prob(both, action), want, rtol=1e-4, atol=1e-5)
    want = scipy.stats.entropy(np.exp(joint), axis=-1)
    np.testing.assert_allclose(entropy(both), want, rtol=1e-4, atol=1e-5)
    likeliest = np.asarray(mode(both))
    np.testing.assert_array_equal(likeliest[:, 0], left.argmax(axis=-1))
    np.testing.assert_array_equal(likeliest[:, 1], right.argmax(axis=-1))


def test_several_choices_are_drawn_independently():
    shares = np.outer([0.25, 0.75], [0.5, 0.3, 0.2])
    parts = (jnp.log(jnp.array([0.25, 0.75])), jnp.log(jnp.array([0.5, 0.3, 0.2])))
    drawn = many(MultiCategorical(parts))
    assert drawn.dtype == np.int32 and drawn.shape == (100_000, 2)
    counted = np.bincount(3 * drawn[:, 0] + drawn[:, 1], minlength=6)
    assert scipy.stats.chisquare(counted, shares.ravel() * len(drawn)).pvalue > 1e-3


@pytest.mark.parametrize("batch", [(), (5,), (2, 5)])
def test_any_leading_axes(batch):
    key = jax.random.PRNGKey(3)
    logits = (jnp.zeros((*batch, 2)), jnp.zeros((*batch, 4)))
    cases = [
        (Gaussian(jnp.zeros((*batch, 3)), jnp.zeros(3)), (3,)),
        (Categorical(jnp.zeros((*batch, 3))), ()),
        (MultiCategorical(logits), (2,)),
    ]
    for distribution, event in cases:
        drawn = sample(distribution, key)
        assert drawn.shape == mode(distribution).shape == (*batch, *event)
        assert log_prob(distribution, drawn).shape == entropy(distribution).shape == batch
