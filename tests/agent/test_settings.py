"""What can be changed on a live agent: schedules, settings, weights; and what it can be asked."""

import jax
import numpy as np
import pytest

import understudy as us
from understudy.types import CheckpointError, ConfigError

pytestmark = pytest.mark.agents

SMALL = dict(
    hidden_sizes=(8, 8), batch_size=16, buffer_size=512, start_steps=20, min_buffer_size=20
)
QUIET = dict(progress=False, run=us.RunConfig(evaluation_episodes=1, evaluate_every=0))


@pytest.fixture(scope="module")
def pair():
    agents = [us.SAC("jax:Pendulum-v1", us.SACConfig(**SMALL), seed=s, num_seeds=2) for s in (0, 5)]
    for agent in agents:
        agent.train(60, **QUIET)
    return agents


def hyper(agent, name):
    return np.asarray(agent.state.hyper[name])


def test_schedules_of_a_training_span_it_and_go_on_in_the_next(caplog):
    agent = us.TD3("jax:Pendulum-v1", us.TD3Config(**SMALL))
    agent.train(100, schedules={"learning_rate": us.linear(1.0, 0.0)}, **QUIET)
    assert hyper(agent, "learning_rate")[0] == pytest.approx(0.01, rel=1e-4)  # before step 100
    agent.train(10, **QUIET)
    assert hyper(agent, "learning_rate")[0] == 0.0
    line = (
        "the schedule of learning_rate was given to an earlier training: it ends at step 100 of 110"
    )
    assert [record.getMessage() for record in caplog.records] == [line]
    agent.train(10, schedules={"learning_rate": us.constant(0.5)}, **QUIET)
    assert hyper(agent, "learning_rate")[0] == 0.5
    agent.set(learning_rate=0.25)
    agent.train(10, **QUIET)
    assert hyper(agent, "learning_rate")[0] == 0.25


@pytest.mark.parametrize(
    ("kind", "env"),
    [("A2C", "jax:CartPole-v1"), pytest.param("DDPG", "jax:Pendulum-v1", marks=pytest.mark.slow)],
)
def test_an_annealed_learning_rate_spans_all_trainings(kind, env, caplog):
    """The second training learned with a rate of 0."""
    settings = dict(hidden_sizes=(8,)) if kind == "A2C" else SMALL
    config = getattr(us, f"{kind}Config")(learning_rate=1e-3, anneal_learning_rate=True, **settings)
    agent = getattr(us, kind)(env, config, num_envs=1)
    agent.train(100, **QUIET)
    assert 0.0 < hyper(agent, "learning_rate")[0] <= 1e-3 * 5 / 100
    before = agent.get_weights()
    agent.train(100, **QUIET)
    after = agent.get_weights()
    assert 0.0 < hyper(agent, "learning_rate")[0] <= 1e-3 * 5 / 200
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert (old != new).any()
    assert not caplog.records  # the config's own schedules need no explanation


def test_a_setting_can_have_a_value_for_each_seed(pair):
    agent = pair[0]
    agent.set(learning_rate=[1e-3, 1e-4], tau=0.5)
    np.testing.assert_array_equal(hyper(agent, "learning_rate"), np.float32([1e-3, 1e-4]))
    np.testing.assert_array_equal(hyper(agent, "tau"), np.float32([0.5, 0.5]))


@pytest.mark.parametrize(
    "values, words",
    [
        (dict(learning_rat=1e-4), "did you mean 'learning_rate'"),
        (dict(gamma=1.5), "gamma must be at most 1"),
        (dict(gamma=float("nan")), "gamma must be finite"),
        (dict(gamma=[0.9, 0.9, 0.9]), "gamma must be a number, or 2, one per seed"),
        (dict(batch_size=8), "'batch_size' is no setting that can move"),
        (dict(temperature=0.1), "temperature is not set in the config"),
    ],
)
def test_a_bad_value_changes_nothing(pair, values, words):
    before = jax.device_get(pair[1].state.hyper)
    with pytest.raises(ConfigError, match=words) as caught:
        pair[1].set(tau=0.1, **values)
    assert "\n" not in str(caught.value)
    after = jax.device_get(pair[1].state.hyper)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_curves_and_what_was_set_by_hand_come_back_and_functions_are_handed_in_again(tmp_path):
    """The config itself moves the learning rate, until it is set by hand."""
    config = us.SACConfig(**SMALL, anneal_learning_rate=True)
    agent = us.SAC("jax:Pendulum-v1", config)
    schedules = {"gamma": us.linear(0.9, 0.99), "tau": lambda step: 0.01 + step / 1e5}
    agent.train(100, schedules=schedules, **QUIET)
    agent.set(learning_rate=0.25)
    agent.save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"its schedules \(tau\)"):
        us.load(tmp_path / "saved")
    again = us.load(tmp_path / "saved", schedules={"tau": schedules["tau"]})
    again.train(10, **QUIET)
    assert hyper(again, "gamma")[0] == np.float32(0.99)  # the horizon came back with it
    assert hyper(again, "tau")[0] == np.float32(0.01 + 109 / 1e5)
    assert hyper(again, "learning_rate")[0] == 0.25
    again.train(10, schedules={"gamma": us.constant(0.5)}, **QUIET)
    assert hyper(again, "learning_rate")[0] == 0.25 and hyper(again, "gamma")[0] == 0.5


def test_weights_are_taken_over_and_targets_follow(pair):
    giver, taker = pair
    weights = giver.get_weights()
    assert weights.keys() == {"actor", "critic"}
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(weights))
    taker.set_weights(weights)
    state = jax.device_get(taker.state)
    targets = {"critic": state.targets.critic}  # SAC's actor has none
    for name, taken in (*state.params._asdict().items(), *targets.items()):
        want = weights.get(name, taken)  # a temperature is no network
        for ours, theirs in zip(jax.tree.leaves(taken), jax.tree.leaves(want), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    observation = np.zeros(3, np.float32)
    np.testing.assert_array_equal(taker[0].act(observation), giver[0].act(observation))
    taker.train(10, **QUIET)  # donated buffers: the giver's must not be gone
    giver.train(10, **QUIET)


def test_weights_of_another_shape_are_refused(pair):
    taker = pair[1]
    before = taker.get_weights()
    others = us.SAC("jax:Pendulum-v1", us.SACConfig(**SMALL | dict(hidden_sizes=(4, 4))))
    with pytest.raises(ConfigError, match="weights must be a dict of actor, critic"):
        taker.set_weights({"actor": before["actor"]})
    with pytest.raises(ConfigError, match=r"weights of actor: shape \(1, 3, 4\) where"):
        taker.set_weights(others.get_weights())
    spoiled = jax.tree.map(lambda x: np.full_like(x, np.nan), before)
    with pytest.raises(ConfigError, match="weights of actor are not all finite"):
        taker.set_weights(spoiled)
    for ours, theirs in zip(
        jax.tree.leaves(before), jax.tree.leaves(taker.get_weights()), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_a_question_that_an_algorithm_cannot_answer(pair):
    with pytest.raises(AttributeError, match="SAC has no value"):
        pair[0].value(np.zeros(3))
