"""Every kind of policy is described whole: its player does what the agent does."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy_cases import CHOICE, KINDS, LOPSIDED, assert_agree, case, make, observations
from scipy.stats import ks_2samp

import understudy as us
from understudy.nets import MLP, Networks
from understudy.runner import Player
from understudy.runs.describe import describe
from understudy.types import CheckpointError, ConfigError

every_kind = pytest.mark.parametrize("kind", list(KINDS))


@every_kind
def test_a_player_agrees_with_the_agent(kind):
    player, seen = Player(case(kind).describe()), observations()
    assert_agree(case(kind), player.act(seen), seen)
    alone = [player.act(row) for row in seen[:20]]
    np.testing.assert_allclose(alone, player.act(seen[:20]), rtol=1e-5, atol=1e-6)


@every_kind
def test_a_player_explores_as_the_agent_does(kind):
    seen = np.repeat(observations(2)[1:], 4000, axis=0)
    player = Player(case(kind).describe())
    ours = player.act(seen, deterministic=False, rng=np.random.default_rng(0))
    theirs = case(kind).act(seen, key=jax.random.PRNGKey(3))
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    columns = zip(ours.reshape(len(seen), -1).T, theirs.reshape(len(seen), -1).T, strict=True)
    for mine, reference in columns:
        assert ks_2samp(mine, reference).pvalue > 1e-3
    assert (ours != player.act(seen)).any()


def test_every_kind_of_policy_is_there():
    """Or the tests above would show less than they seem to."""
    heads = {type(getattr(case(k).policy, "actor", None) or case(k).policy.critic) for k in KINDS}
    names = {head.__name__ for head in heads}
    actors = {name for name in vars(us.nets) if name.endswith("Actor")}
    assert names == {*actors, "QValues", "DuelingQValues"}
    settings = [settings for _, _, settings in KINDS.values()]
    assert {s.get("activation") for s in settings} >= {"tanh", "relu", "elu", "silu", "gelu"}


def test_what_it_says_about_itself():
    described = case("SAC").describe()
    assert described.about["algorithm"] == "sac" and described.about["env"] == "Test-v0"
    assert described.about["config"]["hidden_sizes"] == [8]
    assert us.types.Spec.from_dict(described.spec) == case("SAC").spec


def test_encoders_of_your_own_made_of_ours_are_described():
    networks = Networks(actor_encoder=lambda n, key: MLP(n, (6, 6), key, layer_norm=True))
    own, seen = make("td3", LOPSIDED, {}, networks), observations()
    assert_agree(own, Player(own.describe()).act(seen), seen)


@pytest.mark.parametrize(
    ("name", "action", "networks", "place"),
    [
        ("sac", LOPSIDED, dict(actor_encoder=lambda n, k: eqx.nn.MLP(n, 8, 8, 1, key=k)), "actor"),
        ("ddqn", CHOICE, dict(critic_encoder=lambda n, k: eqx.nn.Linear(n, 8, key=k)), "critic"),
    ],
)
def test_an_encoder_of_your_own_is_named(name, action, networks, place):
    own = make(name, action, {}, Networks(**networks))
    with pytest.raises(ConfigError, match=rf"{place}.*your own module '(MLP|Linear)'.*agent\.save"):
        own.describe()


def test_members_are_not_described_at_once():
    one = case("TD3")
    many = jax.tree.map(lambda x: jnp.stack([x, x]), one.policy)
    with pytest.raises(ConfigError, match=r"actor\.encoder\.0 .*one member"):
        describe(one.algorithm, many, one.spec)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(value):
    sick = case("TD3")
    bias = sick.policy.actor.head.bias.at[1].set(value)
    policy = eqx.tree_at(lambda p: p.actor.head.bias, sick.policy, bias)
    with pytest.raises(CheckpointError, match=r"actor\.head\.bias is not finite"):
        describe(sick.algorithm, policy, sick.spec)
