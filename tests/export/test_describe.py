"""Every kind of policy is described whole: its player does what the agent does."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import ks_2samp

import understudy as us
from tests.export.policy_cases import (
    CHOICE,
    EVERY,
    LOPSIDED,
    PLANES,
    REMEMBERING,
    SEEING,
    SENSING,
    assert_agree,
    case,
    make,
    observations,
)
from understudy.export.describe import describe
from understudy.networks import MLP, Linear, Networks, StateValue
from understudy.networks.ensembles import Critics
from understudy.runner import Player, load
from understudy.runs.policy_file import save_policy
from understudy.types import CheckpointError, ConfigError

pytestmark = pytest.mark.agents

KEY = jax.random.PRNGKey(0)
every_kind = pytest.mark.parametrize("kind", list(EVERY))


def rows_of(seen, place):
    """Of an array, or of every entry of a dict."""
    return jax.tree.map(lambda entry: entry[place], seen)


def action_of(answer):
    return answer[0] if isinstance(answer, tuple) else answer


@every_kind
def test_a_player_agrees_with_the_agent(kind):
    player, seen = Player(case(kind).describe()), case(kind).observations()
    assert_agree(case(kind), player.act(seen), seen)
    alone = [action_of(player.act(rows_of(seen, place))) for place in range(20)]
    together = action_of(player.act(rows_of(seen, slice(20))))
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", REMEMBERING)
def test_a_player_remembers_what_the_agent_does(kind):
    own = case(kind)
    player, seen = Player(own.describe()), own.observations()
    assert player.memory_size == own.algorithm.config.memory_width
    memory = alone = None
    for step in range(5):
        seen = own.observations(seed=step)
        assert_agree(own, player.act(seen, memory), seen, memory)
        action, memory = player.act(seen, memory)
        one, alone = player.act(rows_of(seen, 3), alone)
        np.testing.assert_allclose(one, action[3], rtol=1e-4, atol=1e-5)
    forgotten = action_of(player.act(seen))
    assert (forgotten != action).any()


@every_kind
def test_a_player_explores_as_the_agent_does(kind):
    own = case(kind)
    rows = 4000 if own.spec.observation.dtype == "float32" else 500
    seen = jax.tree.map(lambda x: np.repeat(x[1:], rows, axis=0), own.observations(2))
    player = Player(own.describe())
    ours = action_of(player.act(seen, deterministic=False, rng=np.random.default_rng(0)))
    theirs = action_of(own.act(seen, key=jax.random.PRNGKey(3)))
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    columns = zip(ours.reshape(rows, -1).T, theirs.reshape(rows, -1).T, strict=True)
    for mine, reference in columns:
        assert ks_2samp(mine, reference).pvalue > 1e-3
    assert (ours != action_of(player.act(seen))).any()


def test_every_kind_of_policy_is_there():
    """Or the tests above would show less than they seem to."""
    acting = [case(kind).policy[0] for kind in EVERY]
    heads = [one.members if isinstance(one, Critics) else one for one in acting]
    names = {type(head).__name__ for head in heads}
    actors = {name for name in vars(us.networks) if name.endswith("Actor")}
    assert names == {*actors, "QValues", "DuelingQValues"}
    settings = [told[2] for told in EVERY.values()]
    assert {s.get("activation") for s in settings} >= {"tanh", "relu", "elu", "silu", "gelu"}


@pytest.mark.parametrize("kind", list(SENSING))
def test_what_senses_comes_back_from_a_file(kind, tmp_path):
    described, seen = case(kind).describe(), case(kind).observations(9)
    player = load(save_policy(tmp_path / "policy.safetensors", described))
    answers = zip(*(jax.tree.leaves(p.act(seen)) for p in (player, Player(described))), strict=True)
    for back, before in answers:
        np.testing.assert_array_equal(back, before)


def test_what_it_says_about_itself():
    described = case("SAC").describe()
    assert described.about["algorithm"] == "sac" and described.about["env"] == "Test-v0"
    assert described.about["config"]["hidden_sizes"] == [8]
    assert us.types.Spec.from_dict(described.spec) == case("SAC").spec


def test_encoders_of_your_own_made_of_ours_are_described():
    networks = Networks(actor_encoder=lambda n, key: MLP(n, (6, 6), key, layer_norm=True))
    own, seen = make("td3", LOPSIDED, {}, networks=networks), observations()
    assert_agree(own, Player(own.describe()).act(seen), seen)


@pytest.mark.parametrize(
    ("name", "action", "networks", "place"),
    [
        ("sac", LOPSIDED, dict(actor_encoder=lambda n, k: eqx.nn.MLP(n, 8, 8, 1, key=k)), "actor"),
        ("ddqn", CHOICE, dict(critic_encoder=lambda n, k: eqx.nn.Linear(n, 8, key=k)), "critic"),
    ],
)
def test_an_encoder_of_your_own_is_named(name, action, networks, place):
    own = make(name, action, {}, networks=Networks(**networks))
    with pytest.raises(ConfigError, match=rf"{place}.*your own module '(MLP|Linear)'.*agent\.save"):
        own.describe()


def test_an_encoder_of_your_own_before_a_memory_is_described():
    networks = Networks(encoder=lambda spec, key: MLP(spec.size, (6,), key))
    own = make("td3", LOPSIDED, dict(memory="gru", memory_size=4), networks=networks)
    assert_agree(own, Player(own.describe()).act(observations()), observations())


class Eye(eqx.Module):
    scale: jax.Array

    def __call__(self, seen):
        return self.scale * (seen["eye"] if isinstance(seen, dict) else seen).ravel()


@pytest.mark.parametrize("seen", [PLANES, SEEING])
def test_senses_of_your_own_are_named(seen):
    networks = Networks(encoder=lambda spec, key: Eye(jnp.float32(0.5)))
    own = make("td3", LOPSIDED, {}, seen, networks)
    with pytest.raises(ConfigError, match=r"the encoder is your own module 'Eye'.*agent\.save"):
        own.describe()


def test_members_are_not_described_at_once():
    one = case("TD3")
    many = jax.tree.map(lambda x: jnp.stack([x, x]), one.policy)
    with pytest.raises(ConfigError, match=r"actor\.encoder\.0 .*one seed"):
        describe(one.algorithm, many, one.spec)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(value):
    sick = case("TD3")
    bias = sick.policy.actor.head.bias.at[1].set(value)
    policy = eqx.tree_at(lambda p: p.actor.head.bias, sick.policy, bias)
    with pytest.raises(CheckpointError, match=r"actor\.head\.bias is not finite"):
        describe(sick.algorithm, policy, sick.spec)


class Still(eqx.Module):
    """An actor that does not move, with nothing that others have."""

    def mode(self, observation):
        return jnp.zeros((*observation.shape[:-1], 2))


@pytest.mark.parametrize("head", [Still(), StateValue(MLP(3, (4,), KEY), Linear(4, 1, KEY))])
def test_an_actor_of_your_own_is_named(head):
    own = case("TD3")
    with pytest.raises(ConfigError, match=f"an actor of type '{type(head).__name__}'"):
        describe(own.algorithm, own.policy._replace(actor=head), own.spec)
