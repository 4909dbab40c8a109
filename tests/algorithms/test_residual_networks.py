"""Residual networks and projected weights in updates: alone, in shards, on the seed axis."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import understudy as us
from tests.algorithms.algorithm_cases import KEY, Case, case, close, make_batch, same, shards_of
from tests.networks.test_residual import assert_unit_weights
from understudy.algorithms.gradients import mean_of_shards
from understudy.networks.projection import project_weights
from understudy.types import ConfigError

pytestmark = pytest.mark.agents

SPHERE = dict(network="simbav2", activation="relu", num_critics=2)
PROJECTED = dict(project_weights=True, num_critics=2)
FLASHSAC = dict(network="flashsac", num_critics=2)
KINDS = {"simbav2": ("sac", SPHERE), "mlp": ("td3", PROJECTED), "flashsac": ("sac", FLASHSAC)}
kinds = pytest.mark.parametrize("name, settings", KINDS.values(), ids=KINDS)
divisible = pytest.mark.parametrize(
    "name, settings", [KINDS["simbav2"], KINDS["mlp"]], ids=["simbav2", "mlp"]
)


def made_of(name, settings) -> Case:
    return case(name, **settings)


@kinds
def test_weights_have_length_one_after_every_update(name, settings):
    made = made_of(name, settings)
    state = made.state
    for index in range(3):
        state, _ = made.update(state, make_batch(seed=index), index=index)
        assert_unit_weights(state.params.actor)
        assert_unit_weights(state.params.critic)
    assert not same(state.params.actor, made.state.params.actor)


@kinds
def test_an_update_is_the_optimizers_step_and_then_the_projection(name, settings):
    made = made_of(name, settings)
    gradients, _ = made.gradients()
    new = made.apply(made.state, gradients)
    optimizers = made.algorithm.optimizers
    plain = dataclasses.replace(optimizers, config=_Unprojected(optimizers.config))
    stepped, _ = jax.jit(plain.step)(made.state, gradients)
    for part in ("actor", "critic"):
        before = getattr(stepped, part)
        close(jax.jit(project_weights)(before), getattr(new.params, part), 1e-5)
        with pytest.raises(AssertionError):
            assert_unit_weights(before)


class _Unprojected:
    """A config without projection, and equal to the given one in all else."""

    unit_weights = False

    def __init__(self, config):
        self._config = config

    def __getattr__(self, name):
        return getattr(self._config, name)


@divisible  # a shard has other statistics than the whole batch
def test_shards_move_the_networks_as_the_whole_batch_does(name, settings):
    made, batch = made_of(name, settings), make_batch()
    whole, _ = made.gradients(batch=batch)
    mean = mean_of_shards([made.gradients(batch=shard)[0] for shard in shards_of(batch)])
    close(mean._replace(mask=None), whole._replace(mask=None), 1e-5)
    new = made.apply(made.state, mean)
    assert_unit_weights(new.params.actor)
    assert_unit_weights(new.params.critic)


@kinds
def test_seeds_are_projected_each_by_itself(name, settings):
    made = made_of(name, settings)
    other, _ = made.update()
    both = jax.tree.map(lambda x, y: jnp.stack([x, y]), made.state, other)
    batch, mask = make_batch(seed=1), made.algorithm.update_mask(0)
    step = jax.jit(jax.vmap(lambda state: made.algorithm.update(state, batch, KEY, mask)[0]))
    together = step(both)
    assert_unit_weights(together.params.critic)
    for place, state in enumerate((made.state, other)):
        alone, _ = made.update(state, batch)
        close(jax.tree.map(lambda leaf, i=place: leaf[i], together.params), alone.params, 1e-4)


def test_on_policy_algorithms_and_dueling_have_plain_networks():
    with pytest.raises(ConfigError, match="unknown field 'network'"):
        us.A2CConfig(network="simba")  # pyright: ignore[reportCallIssue]
    with pytest.raises(ConfigError, match="dueling is for the network mlp, not simba"):
        us.DDQNConfig(dueling=True, network="simba")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, env, network",
    [
        (us.SAC, "jax:Pendulum-v1", "simbav2"),
        (us.SAC, "jax:Pendulum-v1", "flashsac"),
        (us.TD3, "jax:Pendulum-v1", "flashsac"),
        (us.MPO, "jax:Pendulum-v1", "simba"),
        (us.DDPG, "jax:Pendulum-v1", "simbav2"),
        (us.DDQN, "jax:CartPole-v1", "simbav2"),
    ],
)
def test_an_agent_trains_and_comes_back(kind, env, network, tmp_path):
    settings = dict(
        hidden_sizes=(4, 4), layer_norm=False, batch_size=8, buffer_size=100, start_steps=8
    )
    agent = kind(env, network=network, min_buffer_size=8, **settings, num_seeds=2, seed=3)
    agent.train(24)
    agent.save(tmp_path / "agent")
    back = us.load(tmp_path / "agent")
    width = agent.spec.observation.shape[0]
    seen = np.random.default_rng(0).normal(size=(2, width)).astype(np.float32)
    for one in (agent, back):
        one.train(16)
    assert same(agent.get_weights(), back.get_weights())
    np.testing.assert_array_equal(agent.act(seen), back.act(seen))
