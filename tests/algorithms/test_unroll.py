"""With memory, an update unrolls each encoder once. Its gradients are those of an update that
encodes the observations and the next observations apart, and once more for each loss."""

import dataclasses
import importlib
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms.algorithm_cases import KEY
from understudy.algorithms import find, joint_pass
from understudy.algorithms.ddqn import losses
from understudy.algorithms.optim import only
from understudy.networks import ensembles
from understudy.types import ArraySpec, Batch, Continuous, Discrete, History, Spec, Trajectory

pytestmark = pytest.mark.agents

SEQUENCES, LENGTH, BURN_IN, N_STEP = 3, 5, 2, 3
TIME, ROWS = BURN_IN + LENGTH + N_STEP, SEQUENCES * LENGTH
SETTINGS = dict(hidden_sizes=(6,), activation="tanh", memory_size=4)
CHOICE, BOX = Discrete(3), Continuous((-1.0,) * 2, (1.0,) * 2, (2,))
CASES = {
    "ddqn": ("ddqn", CHOICE, dict(dueling=True)),
    "ddpg": ("ddpg", BOX, {}),
    "td3": ("td3", BOX, {}),
    "sac": ("sac", BOX, {}),
    "sac-choice": ("sac", CHOICE, dict(critic_subset=1)),
    "mpo": ("mpo", BOX, dict(sample_action_num=4, num_critics=2)),
    "td3-one-encoder": ("td3", BOX, dict(actor_trains_encoder=True)),
    "sac-batch-norm": ("sac", BOX, dict(normalization="batch", actor_trains_encoder=True)),
    "sac-flashsac": ("sac", BOX, dict(network="flashsac")),
}
AGAIN = ("td3-one-encoder", "sac-batch-norm", "sac-flashsac")  # the actor unrolls, too
ONCE = [case for case in CASES if case not in AGAIN]
CASES_OFF = ("ddqn", "ddpg", "td3", "sac")


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def make_batch(action, width, burn_in=BURN_IN):
    """Sequences with episodes that begin in the burn-in and after it. Sums of rewards stop there:
    the next observations are one to three steps ahead."""
    rng = np.random.default_rng(0)
    first = np.zeros((SEQUENCES, TIME), bool)
    first[0, 1] = first[1, 4] = first[2, 3] = first[2, 8] = True
    at = np.broadcast_to(burn_in + np.arange(LENGTH), (SEQUENCES, LENGTH)).astype(np.int32)
    taken = rng.integers(1, N_STEP + 1, at.shape)
    shared = (normal(rng, SEQUENCES, TIME, 3), jnp.asarray(first), normal(rng, SEQUENCES, width))
    here, there = (
        History(*shared, jnp.asarray(moments, jnp.int32), burn_in=burn_in)
        for moments in (at, at + taken)
    )
    chosen = isinstance(action, Discrete)
    return Batch(
        observation=here,
        action=jnp.asarray(rng.integers(3, size=ROWS), jnp.int32)
        if chosen
        else jnp.tanh(normal(rng, ROWS, 2)),
        reward=normal(rng, ROWS),
        discount=jnp.asarray(rng.choice([0.0, 0.9], size=ROWS), jnp.float32),
        next_observation=there,
        weight=jnp.asarray(rng.uniform(0.5, 1.5, ROWS), jnp.float32),
        row=jnp.asarray(np.arange(ROWS), jnp.int32),
    )


@cache
def made(case, memory, burn_in=BURN_IN):
    """An algorithm, a state whose targets differ from its networks, and a batch."""
    name, action, settings = CASES[case]
    kind = find(name)
    algorithm = kind(kind.config_class(memory=memory, **SETTINGS, **settings))

    @jax.jit
    def begin(key):
        spec = Spec(ArraySpec((3,)), action)
        return algorithm.init(spec, key)._replace(targets=algorithm.init(spec, key + 1).targets)

    return algorithm, begin(KEY), make_batch(action, algorithm.config.memory_width, burn_in)


def compute(algorithm, state, batch):
    prepared = algorithm.prepare(state, batch)
    found, aux = algorithm.gradients(state, prepared, KEY, algorithm.update_mask(0))
    return found.params, aux.metrics, aux.priorities


def compute_apart(algorithm, state, batch):
    """The same with an unroll for every use of an encoder."""

    def apart(critics, batch):
        return joint_pass.Online(batch, critics, critics, lambda gradient: gradient)

    def each(encoder, *observations):
        return tuple(map(encoder, observations))

    module = importlib.import_module(type(algorithm).__module__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "encode_online", apart)
        patch.setattr(ensembles, "encode_each", each)
        return compute(algorithm, state, batch)


def agree(got, want):
    for one, other in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        # The floor is for gradients that are zero but for rounding: offsets before BatchNorm.
        scale = max(float(np.abs(other).max()), 1e-2)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5 * scale)


def both_cells(case, usual):
    other = {"gru": "lstm", "lstm": "gru"}[usual]
    return [(case, usual), pytest.param(case, other, marks=pytest.mark.slow)]


@pytest.mark.parametrize(
    ("case", "memory"),
    [
        *both_cells("ddqn", "gru"),
        *both_cells("ddpg", "gru"),
        *both_cells("td3", "lstm"),
        *both_cells("sac", "gru"),
        *both_cells("sac-choice", "lstm"),
        *both_cells("mpo", "lstm"),
        *both_cells("td3-one-encoder", "gru"),
        *both_cells("sac-batch-norm", "gru"),
        pytest.param("sac-flashsac", "gru", marks=pytest.mark.slow),
    ],
)
def test_one_unroll_has_the_gradients_of_several(case, memory):
    algorithm, state, batch = made(case, memory)
    got, want = (
        jax.jit(lambda state, batch, f=f: f(algorithm, state, batch))(state, batch)
        for f in (compute, compute_apart)
    )
    agree(got, want)
    encoder = want[0].critic.observation_encoder
    assert all(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(encoder))


@pytest.mark.parametrize(
    ("case", "networks"),
    [("td3", "critics"), *(pytest.param(c, "off", marks=pytest.mark.slow) for c in CASES_OFF)],
)
def test_without_targets_the_networks_take_their_place(case, networks):
    """With targets that are copies of the networks, the gradients are the same."""
    algorithm, state, batch = made(case, "gru")
    kind = type(algorithm)
    without = kind(dataclasses.replace(algorithm.config, target_networks=networks))
    copies = jax.tree.map(lambda _, own: own, state.targets, only(state.params, kind.target_names))
    kept = only(copies, without.targeted)
    got, want = (
        jax.jit(lambda state, made=made: compute(made, state, batch))(state._replace(targets=given))
        for made, given in ((without, kept), (algorithm, copies))
    )
    agree(got, want)


def test_targets_have_no_gradient():
    """DDQN's gradient is that of its loss at a given target, without a burn-in too."""
    algorithm, state, batch = made("ddqn", "gru", burn_in=0)

    @jax.jit
    def alone(state):
        prepared, critic = algorithm.prepare(state, batch), state.params.critic
        target = losses.critic_target(critic, state.targets.critic, prepared)
        return jax.grad(lambda x: losses.critic_loss(x, prepared, target, losses.huber)[0])(critic)

    got = jax.jit(lambda state: compute(algorithm, state, batch))(state)[0].critic
    agree(got, alone(state))


def test_burn_in_has_no_gradient():
    """The gradient is that of sequences which begin after the burn-in, from the state there."""
    algorithm, state, batch = made("ddqn", "gru")

    @jax.jit
    def after_burn_in(state):
        whole = batch.observation
        states = state.params.critic.observation_encoder.recurrent_states(whole)
        later = History(
            whole.observation[:, BURN_IN:],
            whole.first[:, BURN_IN:],
            states[:, BURN_IN - 1],
            whole.at - BURN_IN,
        )
        target = losses.critic_target(state.params.critic, state.targets.critic, batch)
        prepared = algorithm.prepare(state, batch)._replace(observation=later)
        differentiate = jax.grad(lambda x: losses.critic_loss(x, prepared, target, losses.huber)[0])
        return differentiate(state.params.critic)

    got = jax.jit(lambda state: compute(algorithm, state, batch))(state)[0].critic
    agree(got, after_burn_in(state))


def count_scans(jaxpr):
    """Scans of a program, those inside other operations included."""
    inner = [
        count_scans(getattr(part, "jaxpr", part))
        for equation in jaxpr.eqns
        for value in equation.params.values()
        for part in (value if isinstance(value, tuple | list) else [value])
        if hasattr(getattr(part, "jaxpr", part), "eqns")
    ]
    return sum(equation.primitive.name == "scan" for equation in jaxpr.eqns) + sum(inner)


@pytest.mark.parametrize("case", ONCE)
def test_each_encoder_is_unrolled_once(case):
    """Two encoders, two scans each: over the burn-in and over the rest. One is transposed."""
    algorithm, state, batch = made(case, "gru")
    traced = jax.make_jaxpr(lambda state: compute(algorithm, state, batch))(state)
    assert count_scans(traced.jaxpr) == 2 * 2 + 1


@pytest.mark.parametrize(
    ("name", "settings"), [("a2c", {}), ("pqn", dict(epochs=1, minibatches=1)), ("reppo", {})]
)
def test_the_values_of_a_rollout_need_one_unroll(name, settings):
    kind, rng = find(name), np.random.default_rng(0)
    algorithm = kind(kind.config_class(memory="gru", **SETTINGS, **settings))
    state = jax.jit(lambda key: algorithm.init(Spec(ArraySpec((3,)), CHOICE), key))(KEY)
    time, envs = 6, 2
    last = jnp.zeros((time, envs), bool).at[2, 1].set(True)
    steps = Trajectory(
        observation=normal(rng, time, envs, 3),
        action=jnp.zeros((time, envs), jnp.int32),
        reward=normal(rng, time, envs),
        discount=jnp.full((time, envs), 0.9),
        last=last,
        next_observation=normal(rng, time, envs, 3),
        valid=jnp.ones((time, envs), bool),
        memory=normal(rng, envs, 4),
    )
    assert count_scans(jax.make_jaxpr(algorithm.prepare)(state, steps).jaxpr) == 2  # and traces
