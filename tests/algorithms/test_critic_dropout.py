"""Dropout in the critics' losses: by row, without a trace in params, never while acting."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import understudy as us
from tests.algorithms.algorithm_cases import (
    KEY,
    SPEC,
    case,
    close,
    copies_of,
    make_batch,
    mapped,
    same,
    shards_of,
)
from understudy.algorithms.ddqn import DDQN, DDQNConfig
from understudy.algorithms.gradients import differentiate_critic, with_dropout
from understudy.algorithms.joint_pass import encode_online
from understudy.algorithms.mpo import MPO, MPOConfig
from understudy.algorithms.td3 import losses
from understudy.types import ConfigError, Discrete, Spec

pytestmark = pytest.mark.agents

DROPPING = dict(critic_dropout=0.5, layer_norm=True)
both = pytest.mark.parametrize("name", ["td3", "sac"])


def dropping(name):
    return case(name, **DROPPING)


@both
def test_it_leaves_no_trace_in_the_state(name):
    """The same arrays by the same names, and the same first weights."""
    made, plain = dropping(name), case(name, layer_norm=True)
    assert same(made.state, plain.state)
    new, _ = made.update()
    assert jax.tree.structure(new) == jax.tree.structure(plain.update()[0])


@both
def test_losses_drop_units(name):
    """Copies of one row, without other noise in SAC's and TD3's critics, differ by theirs."""
    made, copies = dropping(name), copies_of(make_batch())._replace(discount=jnp.zeros(8))
    errors = made.gradients(batch=copies)[1].priorities
    assert len(np.unique(errors)) == 8  # discount 0: the target has no noise
    plain = case(name, layer_norm=True).gradients(batch=copies)[1].priorities
    assert len(np.unique(np.round(plain, 5))) == 1
    again = made.gradients(batch=copies)[1].priorities
    assert same(errors, again)
    other = made.gradients(batch=copies, key=jax.random.PRNGKey(1))[1].priorities
    assert not np.any(np.asarray(errors) == np.asarray(other))


@both
def test_mean_of_the_shards_is_the_whole(name):
    made, batch = dropping(name), make_batch()
    whole, _ = made.gradients(batch=batch)
    shards = [made.gradients(batch=shard)[0]._replace(mask=None) for shard in shards_of(batch)]
    mean = mapped(lambda x, y: (x + y) / 2, *shards)
    close(mean, whole._replace(mask=None), 1e-5)


@pytest.mark.parametrize("targets", ["all", "off"])
def test_targets_drop_other_units(targets):
    made, batch = case("td3", **DROPPING, target_networks=targets), make_batch()
    state = with_dropout(made.state, made.algorithm.config, batch, KEY)
    one, two = state.params.critic.encoder.dropout, state.targets.critic.encoder.dropout
    assert one.rate == two.rate == 0.5
    assert not np.any(np.asarray(one.key) == np.asarray(two.key))
    np.testing.assert_array_equal(one.row, np.tile(batch.row, (3, 1)))


def test_the_gradient_is_that_of_the_thinned_network():
    """By finite differences along one direction, with the same units dropped."""
    made, batch = dropping("td3"), make_batch()
    state = with_dropout(made.state, made.algorithm.config, batch, KEY)
    target = jnp.zeros(8)

    def part(critic):
        return differentiate_critic(losses.critic_loss, encode_online(critic, batch), target)

    gradient, _ = jax.jit(part)(state.params.critic)
    assert jax.tree.structure(gradient) == jax.tree.structure(made.state.params.critic)
    weight = state.params.critic.encoder.layers[0].weight
    direction = np.random.default_rng(0).normal(size=weight.shape).astype("f4")

    def loss(size):
        place = (lambda critic: critic.encoder.layers[0].weight, state.params.critic)
        critic = eqx.tree_at(*place, weight + size * direction)
        return losses.critic_loss(critic, batch, target)[0]

    compute = jax.jit(loss)
    slope = float(compute(1e-3) - compute(-1e-3)) / 2e-3
    along = float(np.sum(np.asarray(gradient.encoder.layers[0].weight) * direction))
    assert slope == pytest.approx(along, rel=2e-2) and abs(along) > 0.01


@both
def test_acting_and_asking_drop_nothing(name):
    made, plain = dropping(name), case(name, layer_norm=True)
    seen, action = jnp.ones((4, 3)), jnp.zeros((4, 2))
    for method in ("q_values", "log_prob") if name == "sac" else ("q_values",):
        answers = [one.ask(method, seen, action) for one in (made, plain)]
        assert same(*answers)


@pytest.mark.parametrize(
    ("kind", "config", "action"),
    [
        (DDQN, DDQNConfig, Discrete(3)),
        (MPO, MPOConfig, SPEC.action),
        pytest.param(MPO, MPOConfig, Discrete(3), marks=pytest.mark.slow),
    ],
)
def test_other_algorithms_drop_units_too(kind, config, action):
    spec, batch = Spec(SPEC.observation, action), make_batch()
    if isinstance(action, Discrete):
        batch = batch._replace(action=jnp.asarray(np.arange(8) % 3, jnp.int32))
    settings = dict(hidden_sizes=(8,), n_step=1, num_critics=2)
    made = [kind(config(**settings, critic_dropout=rate)) for rate in (0.0, 0.5)]
    state = made[0].init(spec, KEY)
    index = made[0].update_mask(0)
    new = [
        jax.jit(lambda s, b, one=one: one.update(s, b, KEY, index)[0])(state, batch) for one in made
    ]
    assert jax.tree.structure(new[0]) == jax.tree.structure(new[1])
    assert not same(new[0].params.critic, new[1].params.critic)


def test_dueling_streams_drop_units_of_their_own():
    made = DDQN(DDQNConfig(hidden_sizes=(8, 8), dueling=True, critic_dropout=0.5))
    state = made.init(Spec(SPEC.observation, Discrete(3)), KEY)
    critic = with_dropout(state, made.config, make_batch(), KEY).params.critic
    keys = [part.dropout.key[0] for part in (critic.encoder, *critic.streams)]
    assert len({tuple(map(int, key)) for key in keys}) == 3


def test_dropout_is_for_plain_networks():
    with pytest.raises(ConfigError, match="critic_dropout is for the network mlp"):
        DDQNConfig(network="simba", critic_dropout=0.1)
    with pytest.raises(ConfigError, match=r"critic_dropout must be at most 0\.9"):
        DDQNConfig(critic_dropout=1.0)


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.parametrize("kind", [us.SAC, us.MPO])
def test_recurrent_critics_drop_units(kind):
    """A batch has one row for each step of its sequences."""
    sizes = dict(hidden_sizes=(8,), memory_size=8, batch_size=4, buffer_size=200)
    times = dict(sequence_length=4, burn_in=2, start_steps=40, min_buffer_size=40)
    settings = dict(memory="gru", layer_norm=False, n_step=1, **sizes, **times)
    weights = []
    for rate in (0.0, 0.5):
        agent = kind("jax:Pendulum-P-v1", critic_dropout=rate, **settings)
        agent.train(60)
        weights.append(agent.get_weights()["critic"])
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(weights))
    assert not same(*weights)
