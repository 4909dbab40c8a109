"""Users' own modules in place of an encoder."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.algorithms.sac import SAC, SACConfig
from understudy.algorithms.td3 import TD3, TD3Config
from understudy.networks import Networks
from understudy.networks.custom import arrays_only
from understudy.types import ArraySpec, Batch, ConfigError, Continuous, Spec

KEY = jax.random.PRNGKey(0)
SPEC = Spec(ArraySpec((3,)), Continuous((-1.0,) * 2, (1.0,) * 2, (2,)))


def encoder(inputs, key):
    return eqx.nn.MLP(inputs, 6, 5, 1, activation=jax.nn.silu, key=key)


class Shaped(eqx.Module):
    """One flat vector in, an array of any shape out."""

    weight: jax.Array
    shape: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x):
        return jnp.reshape(jnp.sum(self.weight * x) * jnp.ones(self.shape), self.shape)


def batch():
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return Batch(
        observation=normal(4, 3),
        action=jnp.tanh(normal(4, 2)),
        reward=normal(4),
        discount=jnp.full(4, 0.9),
        next_observation=normal(4, 3),
        weight=jnp.ones(4),
        row=jnp.arange(4, dtype=jnp.int32),
    )


def test_a_module_with_loose_leaves_goes_through_jit():
    module = encoder(3, KEY)
    assert not all(eqx.is_array(leaf) for leaf in jax.tree.leaves(module))  # what jit refuses
    ready = arrays_only(module)
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(ready))
    x = jax.random.normal(KEY, (2, 5, 3))
    got = jax.jit(lambda module, x: module(x))(ready, x)
    np.testing.assert_allclose(got, jax.vmap(jax.vmap(module))(x), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ready(x[0, 0]), module(x[0, 0]), rtol=1e-4, atol=1e-6)


def test_equal_modules_share_one_compilation():
    traces = []

    @jax.jit
    def run(module, x):
        traces.append(None)
        return module(x)

    one, two = arrays_only(encoder(3, KEY)), arrays_only(encoder(3, jax.random.PRNGKey(1)))
    other = arrays_only(eqx.nn.MLP(3, 6, 5, 1, activation=jnp.tanh, key=KEY))
    structures = [jax.tree.structure(module) for module in (one, two, other)]
    assert structures[0] == structures[1] and hash(structures[0]) == hash(structures[1])
    assert structures[0] != structures[2]
    for module in (one, two, one):
        run(module, jnp.ones((2, 3)))
    assert len(traces) == 1
    different = run(other, jnp.ones((2, 3)))
    assert len(traces) == 2
    assert not np.allclose(different, run(one, jnp.ones((2, 3))))


@pytest.mark.parametrize("algorithm", [TD3, SAC])
def test_an_agent_learns_through_replaced_encoders(algorithm):
    made_config = {TD3: TD3Config, SAC: SACConfig}[algorithm](learning_rate=0.1)
    made = algorithm(made_config, networks=Networks(encoder, encoder))
    state = made.init(SPEC, KEY)
    assert state.params.actor.head.weight.shape[0] == 6  # features of the user's module
    critic_layers = state.params.critic.encoder.arrays.layers
    assert critic_layers[0].weight.shape == (2, 5, 3 + 2)  # observation and action side by side
    assert not np.any(critic_layers[0].weight[0] == critic_layers[0].weight[1])
    update = jax.jit(
        lambda state, batch: made.update(state, batch, KEY, made.update_mask(jnp.int32(0)))
    )
    new, aux = update(state, batch())
    assert np.isfinite(aux.metrics["critic_loss"])
    for name in ("actor", "critic"):
        before, after = (jax.tree.leaves(getattr(s.params, name)) for s in (state, new))
        for x, y in zip(before, after, strict=True):
            assert not np.array_equal(x, y), name


@pytest.mark.parametrize("networks", ["actor", "critic"])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_wrong_output_shapes_are_config_errors(networks, shape):
    """Neither a scalar nor a matrix is silently flattened into features."""

    def make(inputs, key):
        return Shaped(jnp.ones(inputs), shape)

    wrong = Networks(**{f"{networks}_encoder": make})
    with pytest.raises(ConfigError, match="encoder"):
        TD3(TD3Config(hidden_sizes=(8,)), networks=wrong).init(SPEC, KEY)


def test_a_vector_of_features_is_accepted():
    right = Networks(actor_encoder=lambda inputs, key: Shaped(jnp.ones(inputs), (4,)))
    state = TD3(TD3Config(hidden_sizes=(8, 8)), networks=right).init(SPEC, KEY)
    assert state.params.actor.head.weight.shape == (4, 2)
