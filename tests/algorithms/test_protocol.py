"""What holds for every algorithm: shards, update = apply ∘ gradients, acting, termination."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms.algorithm_cases import (
    KEY,
    SPEC,
    case,
    close,
    compiled,
    copies_of,
    gaps_and_steps,
    make_batch,
    mapped,
    same,
    shards_of,
)
from understudy.algorithms import available, find
from understudy.algorithms.base import Algorithm
from understudy.algorithms.sac import SAC
from understudy.algorithms.sac import losses as sac_losses
from understudy.algorithms.td3 import TD3Config
from understudy.algorithms.td3 import losses as td3_losses
from understudy.buffers import ReplayBuffer
from understudy.networks import evaluate_ensemble
from understudy.ops.targets import pessimistic
from understudy.types import (
    ArraySpec,
    Chunk,
    ConfigError,
    Continuous,
    EnvironmentError,
    MultiDiscrete,
    Spec,
    Step,
)

both = pytest.mark.parametrize("name", ["td3", "sac"])


@both
def test_update_is_apply_after_gradients(name):
    made = case(name)
    assert type(made.algorithm).update is Algorithm.update
    gradients, aux = made.gradients()
    new, update_aux = made.update()
    close(made.apply(made.state, gradients), new, 1e-5)
    close(aux, update_aux, 1e-5)


@both
def test_mean_of_the_shards_is_the_whole(name):
    """Noise belongs to its row, so a shard of rows 4…7 draws what the batch drew there."""
    made, batch = case(name), make_batch()
    whole, whole_aux = made.gradients(batch=batch)
    shards = [made.gradients(batch=shard) for shard in shards_of(batch)]
    first, second = (gradients._replace(mask=None) for gradients, _ in shards)
    mean = mapped(lambda x, y: (x + y) / 2, first, second)
    close(mean, whole._replace(mask=None), 1e-5)
    priorities = np.concatenate([aux.priorities for _, aux in shards])
    np.testing.assert_allclose(priorities, whole_aux.priorities, rtol=1e-4, atol=1e-5)
    losses = [aux.metrics["critic_loss"] for _, aux in shards]
    assert np.mean(losses) == pytest.approx(float(whole_aux.metrics["critic_loss"]), rel=1e-4)


@both
def test_rows_that_are_no_steps_count_nowhere(name):
    """In no gradient (SAC's temperature has one too) and in no metric."""
    made = case(name)
    gaps, steps = gaps_and_steps(make_batch())
    (with_gaps, gaps_aux), (alone, alone_aux) = map(made.gradients, (None, None), (gaps, steps))
    close(with_gaps._replace(mask=None), alone._replace(mask=None), 1e-5)
    close(gaps_aux.metrics, alone_aux.metrics, 1e-5)


@both
def test_noise_differs_by_row_and_by_key(name):
    """Eight copies of one transition: only their noise can tell them apart."""
    made = case(name)
    copies = copies_of(make_batch())
    one = made.gradients(batch=copies)[1].priorities
    assert len(np.unique(one)) == 8
    two = made.gradients(batch=copies, key=jax.random.PRNGKey(1))[1].priorities
    assert not np.any(np.asarray(one) == np.asarray(two))
    assert same(one, made.gradients(batch=copies)[1].priorities)


@both
def test_everything_in_the_state_changes(name):
    """All but the hyper-parameters and the key, which the engine moves."""
    made = case(name)
    state = made.state
    for index in range(3):
        state, _ = made.update(state, make_batch(seed=index), jax.random.PRNGKey(index), index)
    pairs = zip(
        jax.tree.leaves_with_path(made.state), jax.tree.leaves_with_path(state), strict=True
    )
    for (path, before), (_, after) in pairs:
        constant = str(path[0]) in (".hyper", ".key")
        assert np.array_equal(before, after) == constant, jax.tree_util.keystr(path)
        assert np.all(np.isfinite(after))


@both
def test_a_fresh_state_has_targets_of_its_own(name):
    made = case(name)
    state = made.algorithm.init(SPEC, KEY)
    assert same(state.targets.critic, state.params.critic)
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(pointers)) == len(pointers)  # donated buffers must not be shared
    assert not same(
        state.params.actor, made.algorithm.init(SPEC, jax.random.PRNGKey(1)).params.actor
    )


@both
def test_deterministic_acting_is_noise_free_and_exploring_is_bounded(name):
    made = case(name)
    policy = made.algorithm.policy(made.state)
    observation = jnp.asarray(3 * np.random.default_rng(0).normal(size=(64, 3)), jnp.float32)
    first = jnp.ones(64, bool)
    act = compiled(made.algorithm, "act")
    keys = [jax.random.PRNGKey(seed) for seed in (0, 1)]
    calm, memory, _ = act(policy, (), observation, first, keys[0], False)
    assert memory == ()
    assert same(calm, act(policy, (), observation, first, keys[1], False)[0])
    answer = made.answer(observation)
    want = answer if name == "td3" else np.tanh(answer[0])
    np.testing.assert_allclose(calm, want, rtol=1e-5, atol=1e-6)
    one, two = (act(policy, (), observation, first, key, True)[0] for key in keys)
    assert np.all(np.abs(one) <= 1.0) and one.shape == (64, 2)
    assert not np.any(np.asarray(one) == np.asarray(two))
    assert len(np.unique(np.asarray(one) - np.asarray(calm))) > 120  # rows and dimensions differ


def test_td3_explores_with_the_policys_noise_in_normalized_units():
    made = case("td3")
    still = mapped(np.zeros_like, made.state.params.actor)
    for sigma in (0.1, 0.3):
        policy = made.algorithm.policy(made.with_hyper(exploration_noise=sigma))
        policy = policy._replace(actor=still)
        action, _, _ = compiled(made.algorithm, "act")(
            policy, (), jnp.zeros((4000, 3)), jnp.zeros(4000, bool), KEY, True
        )
        assert np.std(action) == pytest.approx(sigma, rel=0.05)
        assert np.mean(action) == pytest.approx(0.0, abs=0.02)


def test_sac_tells_the_log_probability_of_what_it_did():
    made = case("sac")
    observation = make_batch(16).observation
    action, _, extras = compiled(made.algorithm, "act")(
        made.algorithm.policy(made.state), (), observation, jnp.zeros(16, bool), KEY, True
    )
    again = made.ask("log_prob", observation, action)
    np.testing.assert_allclose(extras["log_prob"], again, rtol=2e-2, atol=2e-2)
    bound = made.ask("log_prob", observation, jnp.ones((16, 2)))
    assert np.all(np.isfinite(bound))


@both
def test_truncation_bootstraps_and_termination_does_not(name):
    """The trap: one merged `done`. From the buffer to the target, nothing may merge the two."""
    made = case(name)

    @jax.jit
    def target_and_value(state):
        buffer = ReplayBuffer(SPEC, 4, 1, batch_size=64)
        stored = buffer.init()
        for kind in (0.0, 1.0, 2.0):  # an ordinary step, a truncated one, a terminated one
            row = jnp.full((1, 3), kind)
            step = Step(
                observation=row,
                action=jnp.zeros((1, 2)),
                reward=jnp.full(1, 10.0 + kind),
                terminated=jnp.array([kind == 2.0]),
                last=jnp.array([kind > 0.0]),
                next_observation=row + 0.25,
            )
            stored = buffer.add(stored, Chunk.of_one_step(step, jnp.array([True])))
        hyper = {"gamma": jnp.float32(0.9), "reward_scale": jnp.float32(1.0)}
        batch, _ = buffer.sample(stored, KEY, hyper)
        noise, zero = jnp.zeros((64, 2)), jnp.float32(0.0)
        if name == "td3":
            target = td3_losses.critic_target(
                state.targets.actor, state.targets.critic, batch, zero, zero, noise
            )
            action = state.targets.actor(batch.next_observation)
        else:
            target = sac_losses.critic_target(
                state.params.actor, state.targets.critic, batch, zero, noise
            )
            action = jnp.tanh(state.params.actor(batch.next_observation)[0])
        value = pessimistic(evaluate_ensemble(state.targets.critic, batch.next_observation, action))
        return target, value, batch.observation[:, 0]

    target, value, kinds = jax.device_get(target_and_value(made.state))
    assert set(kinds) == {0.0, 1.0, 2.0} and np.all(np.abs(value) > 1e-3)
    want = 10.0 + kinds + np.where(kinds == 2.0, 0.0, 0.9 * value)
    np.testing.assert_allclose(target, want, rtol=1e-5)


@pytest.mark.parametrize(
    "name, num_critics",
    [
        ("td3", 1),
        ("sac", 5),
        pytest.param("td3", 5, marks=pytest.mark.slow),
        pytest.param("sac", 1, marks=pytest.mark.slow),
    ],
)
def test_any_number_of_critics(name, num_critics):
    made = case(name, num_critics=num_critics, layer_norm=num_critics == 5)
    new, aux = made.update()
    assert np.isfinite(aux.metrics["critic_loss"]) and np.isfinite(aux.metrics["actor_loss"])
    q = compiled(made.algorithm, "q_values")(new, jnp.ones((4, 3)), jnp.zeros((4, 2)))
    assert q.shape == (num_critics, 4)
    assert np.all(np.diff(q, axis=0) != 0.0)
    assert not same(new.params.actor, made.state.params.actor)


def test_algorithms_are_found_by_name():
    assert {"td3", "sac"} <= set(available())
    assert find("SAC") is available()["sac"]
    with pytest.raises(ConfigError, match="did you mean 'td3'"):
        find("tdd3")


@both
def test_specs_that_cannot_be_learned_are_refused(name):
    algorithm = case(name).algorithm
    algorithm.check(SPEC)
    infinite = Continuous((-1.0, -np.inf), (1.0, np.inf), (2,))
    vector = SPEC.observation
    for spec, words in [
        (Spec(vector, MultiDiscrete((2, 2), (0, 0), (2,))), "needs continuous.*are MultiDiscrete"),
        (Spec(vector, infinite), "bounded"),
        (Spec(ArraySpec((8, 8, 3)), SPEC.action), "supports vectors of floats"),
    ]:
        with pytest.raises(EnvironmentError, match=words):
            algorithm.check(spec)


def test_a_config_of_another_algorithm_is_refused():
    with pytest.raises(ConfigError, match="SAC takes a SACConfig, got a TD3Config"):
        SAC(TD3Config())
