"""The public face, from a constructor to a loaded agent, with agents too small to learn much."""

import csv
import json

import equinox as eqx
import gymnasium
import numpy as np
import pytest

import understudy as us
from understudy.types import CheckpointError, EnvironmentError

pytestmark = pytest.mark.agents

TINY = dict(hidden_sizes=(8, 8), batch_size=16, buffer_size=512, start_steps=20, min_buffer_size=20)
OBSERVATION = np.array([0.6, -0.8, 1.5], np.float32)
OBSERVATIONS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
HOST, NATIVE = "Pendulum-v1", "jax:Pendulum-v1"
KINDS = [("SAC", HOST), ("TD3", NATIVE)]
OTHER_KINDS = [
    pytest.param(kind, marks=pytest.mark.slow) for kind in (("TD3", HOST), ("SAC", NATIVE))
]
RUN = us.RunConfig(log_every=110, evaluate_every=110, evaluation_episodes=2)
QUIET = dict(progress=False, run=us.RunConfig(evaluation_episodes=2))
FIRST, THEN = 220, 40


class Lopsided(gymnasium.Env):
    """Short episodes; each action has bounds of its own, none of them symmetric."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (3,), np.float32)
    low, high = np.array([-1.0, 0.25], np.float32), np.array([7.0, 0.5], np.float32)
    action_space = gymnasium.spaces.Box(low, high)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.time += 1
        return self._observe(), float(action[0]), False, self.time >= 10, {}

    def _observe(self):
        return self.np_random.normal(size=3).astype(np.float32)


def tiny(kind, env, networks=None, seed=0, **settings):
    """`settings` are the agent's where it has them, and the config's otherwise."""
    own = {name: settings.pop(name) for name in ("num_seeds", "num_envs") if name in settings}
    config = getattr(us, f"{kind}Config")(**(TINY | settings))
    return getattr(us, kind)(env, config, seed=seed, networks=networks, **own)


@pytest.fixture(scope="module", params=KINDS + OTHER_KINDS, ids=" on ".join)
def trained(request, tmp_path_factory):
    """(agent, the summary of its training, its run directory)"""
    agent = tiny(*request.param)
    directory = tmp_path_factory.mktemp("run") / "deep" / "run"
    summary = agent.train(FIRST, run=RUN, run_dir=directory, progress=False)
    yield agent, summary, directory
    agent.close()


@pytest.fixture(scope="module")
def three():
    """Three seeds, of which the first is not the best."""
    agent = tiny("SAC", NATIVE, num_seeds=3, seed=1)
    agent.train(60, **QUIET)
    return agent


@pytest.fixture(scope="module")
def lopsided():
    agent = tiny("SAC", Lopsided)
    agent.train(50, **QUIET)
    yield agent
    agent.close()


def states(agent, directory):
    agent.save(directory)
    return (directory / "learner.safetensors").read_bytes()


def test_train_says_what_it_did(trained):
    agent, summary, _ = trained
    assert summary.steps == FIRST and summary.seconds > 0
    assert [facts["time/total_steps"] for facts in summary.history] == [110, 220]
    assert summary.returns.shape == (1, 2) and summary.mean == summary.returns.mean()
    assert agent.steps >= FIRST and str(agent.steps) in repr(agent)


def test_a_run_directory_holds_everything(trained):
    agent, summary, directory = trained
    with (directory / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    usual = {"rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps", "time/total_steps"}
    usual |= {"train/actor_loss", "train/critic_loss", "eval/mean_reward"}
    assert usual <= set(rows[0])
    assert ("train/ent_coef" in rows[0]) == (agent.name == "SAC")
    assert [row["time/total_steps"] for row in rows] == ["110", "220"]
    for name in usual | ({"train/ent_coef"} & set(rows[0])):
        assert np.isfinite(float(rows[-1][name])), name
    assert float(rows[-1]["rollout/ep_len_mean"]) == 200
    assert float(rows[-1]["eval/mean_reward"]) == pytest.approx(summary.mean)
    assert (directory / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    about = json.loads((directory / "run.json").read_text())
    assert about["algorithm"] == agent.algorithm.name and about["env"] == agent.env_name
    assert about["config"]["hidden_sizes"] == [8, 8]
    assert us.load(directory / "best").steps in (110, 220)
    assert us.load(directory).steps == 220


def test_acting_alone_and_in_a_batch(trained):
    agent = trained[0]
    one, many = agent.act(OBSERVATION), agent.act(OBSERVATIONS)
    assert type(one) is np.ndarray and one.shape == (1,) and one.dtype == np.float32
    assert type(many) is np.ndarray and many.shape == (5, 1)
    for row, observation in enumerate(OBSERVATIONS):
        np.testing.assert_allclose(agent.act(observation), many[row], rtol=1e-5, atol=1e-6)
    assert agent.act(OBSERVATION.tolist()).shape == (1,)  # anything like an array will do
    assert np.abs(many).max() <= 2 and np.ptp(many) > 0


def test_acting_deterministically_and_not(trained):
    agent, _, _ = trained
    np.testing.assert_array_equal(agent.act(OBSERVATION), agent.act(OBSERVATION))
    drawn = [agent.act(OBSERVATION, deterministic=False)[0] for _ in range(4)]
    assert len(set(drawn)) == 4 and np.abs(drawn).max() <= 2
    many = agent.act(np.tile(OBSERVATION, (50, 1)), deterministic=False)
    assert len(np.unique(many)) > 25  # rows draw noise of their own


@pytest.mark.parametrize("shape", [(), (1,), (4,), (5, 2), (2, 5, 3)])
def test_an_observation_of_the_wrong_shape(lopsided, shape):
    with pytest.raises(EnvironmentError, match=r"shape \((5, 3|3,)\)"):
        lopsided.act(np.zeros(shape))


def test_actions_are_in_the_units_of_the_environment(lopsided):
    observations = 100 * np.random.default_rng(1).normal(size=(200, 3))
    for deterministic in (True, False):
        actions = lopsided.act(observations, deterministic=deterministic)
        assert actions.shape == (200, 2)
        assert (actions >= Lopsided.low).all() and (actions <= Lopsided.high).all()
        assert actions[:, 0].max() > 4 and actions[:, 0].min() < 2  # not merely cut to size


def test_evaluation_is_complete_and_repeats_itself(trained):
    result = (agent := trained[0]).evaluate(episodes=2)
    assert list(result) == ["mean", "std", "iqm", "ci95", "returns"]
    assert np.shape(result["returns"]) == (2,) and len(set(result["returns"])) == 2
    assert result["mean"] == pytest.approx(np.mean(result["returns"]))
    assert result["ci95"][0] <= result["mean"] <= result["ci95"][1]
    assert agent.evaluate(episodes=2) == result
    json.dumps(result)


def test_q_values_and_densities(trained):
    agent, _, _ = trained
    actions = agent.act(OBSERVATIONS)
    values = agent.q_values(OBSERVATIONS, actions)
    assert type(values) is np.ndarray and values.shape == (2, 5)
    assert (values[0] != values[1]).all()
    assert agent.q_values(OBSERVATION, agent.act(OBSERVATION)).shape == (2, 1)
    if agent.name == "TD3":
        with pytest.raises(AttributeError, match="TD3 has no log_prob"):
            agent.log_prob(OBSERVATIONS, actions)
        return
    assert agent.log_prob(OBSERVATIONS, actions).shape == (5,)
    # A density per normalized unit, of actions in real ones: over -2 … 2 it adds up to one.
    grid = np.linspace(-1, 1, 4001)[1:-1]
    density = np.exp(agent.log_prob(np.tile(OBSERVATION, (3999, 1)), 2 * grid[:, None]))
    assert density.mean() * 2 == pytest.approx(1.0, abs=0.02)


def test_saved_and_loaded_bit_for_bit(trained, tmp_path):
    agent, _, _ = trained
    before = states(agent, tmp_path / "a")
    loaded = us.load(tmp_path / "a")
    assert isinstance(loaded, type(agent)) and loaded.config == agent.config
    assert loaded.seed == agent.seed and loaded.num_envs == agent.num_envs
    assert loaded.steps == agent.steps and loaded.env_name == agent.env_name
    np.testing.assert_array_equal(loaded.act(OBSERVATIONS), agent.act(OBSERVATIONS))
    assert states(loaded, tmp_path / "b") == before
    assert loaded.evaluate(2) == agent.evaluate(2)


def test_a_checkpoint_of_another_algorithm_is_refused(trained, tmp_path):
    agent, _, _ = trained
    agent.save(tmp_path / "a")
    other = us.TD3 if agent.name == "SAC" else us.SAC
    with pytest.raises(CheckpointError, match=f"of {agent.name}, not of {other.__name__}"):
        other.load(tmp_path / "a")
    assert type(agent).load(tmp_path / "a").steps == agent.steps


@pytest.mark.fault(32, "without its experience a run continues only on request, after refilling")
def test_without_its_experience_an_agent_refills_before_it_learns(trained, tmp_path):
    agent, _, _ = trained
    agent.save(tmp_path / "a", experience=False)
    with pytest.raises(CheckpointError, match="refill=True"):
        us.load(tmp_path / "a").train(THEN, **QUIET)
    loaded = us.load(tmp_path / "a", refill=True)
    done = json.loads((tmp_path / "a" / "checkpoint.json").read_text())["position"]["updates"]
    run = us.RunConfig(log_every=1, evaluate_every=0, evaluation_episodes=2)
    summary = loaded.train(THEN, run=run, progress=False)
    gained = np.array([facts["time/updates"] for facts in summary.history]) - done
    assert (gained[:19] == 0).all()
    assert THEN - 20 <= gained[-1] <= THEN - 19  # the host loop is one step behind
    assert np.diff(gained).max() == 1  # and nothing is made up for
    assert loaded.steps == agent.steps + THEN
    assert states(loaded, tmp_path / "b") != (tmp_path / "a" / "learner.safetensors").read_bytes()
    loaded.close()


def test_training_goes_on_where_it_stopped(trained):
    """The last to use the shared agents: it moves them."""
    agent, _, _ = trained
    before, steps = agent.act(OBSERVATIONS), agent.steps
    summary = agent.train(THEN, **QUIET)
    assert summary.steps == THEN and agent.steps == steps + THEN
    assert summary.history[-1]["time/total_steps"] == steps + THEN
    assert (agent.act(OBSERVATIONS) != before).any()


def test_members_are_agents_of_their_own(three):
    returns = np.array(three.evaluate(2)["returns"])
    assert returns.shape == (3, 2)
    members = [three[i] for i in range(3)]
    actions = [member.act(OBSERVATIONS) for member in members]
    for i, member in enumerate(members):
        assert member.seed == 1 + i and member.num_seeds == 1 and member.steps == 60
        np.testing.assert_allclose(member.evaluate(2)["returns"], returns[i], rtol=1e-3)
        np.testing.assert_array_equal(three[i - 3].act(OBSERVATIONS), actions[i])
        assert (actions[i] != actions[i - 1]).any()
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"3 seeds, got index {index}"):
            three[index]


def test_the_best_member_acts(three):
    best = int(np.mean(three.evaluate(2)["returns"], axis=1).argmax())
    assert best != 0, "choose another seed, or this test shows nothing"
    assert three.best.seed == three.seed + best
    np.testing.assert_array_equal(three.act(OBSERVATIONS), three[best].act(OBSERVATIONS))
    assert three.q_values(OBSERVATIONS, np.zeros((5, 1))).shape == (2, 5)


def test_a_member_is_not_moved_by_the_others_training(three):
    member = three[1]
    before = member.act(OBSERVATIONS)
    three.train(30, **QUIET)
    np.testing.assert_array_equal(member.act(OBSERVATIONS), before)
    assert member.train(10, **QUIET).steps == 10 and member.steps == 70


def test_a_callable_environment(lopsided, tmp_path):
    """It cannot be stored: it is asked for, and then all is as before."""
    lopsided.save(tmp_path / "a")
    alone = us.load(tmp_path / "a")  # it acts without any environment, and does nothing else
    np.testing.assert_array_equal(alone.act(OBSERVATIONS), lopsided.act(OBSERVATIONS))
    for use in (alone.evaluate, lambda: alone.train(10, **QUIET)):
        with pytest.raises(EnvironmentError, match=r"can only act.*\benv\b"):
            use()
    with pytest.raises(CheckpointError, match="another environment"):
        us.load(tmp_path / "a", env=HOST)
    loaded = us.load(tmp_path / "a", env=Lopsided)
    for agent in (loaded, lopsided[0]):
        np.testing.assert_array_equal(agent.act(OBSERVATIONS), lopsided.act(OBSERVATIONS))


@pytest.mark.parametrize("make", [Lopsided, lambda: gymnasium.vector.SyncVectorEnv([Lopsided] * 3)])
def test_environments_handed_in(make):
    agent = tiny("SAC", make())
    rows = agent.num_envs
    assert rows == (1 if make is Lopsided else 3)
    summary = agent.train(50, **QUIET)
    assert summary.steps == -(-50 // rows) * rows
    assert summary.history[-1]["time/updates"] > 0
    assert summary.history[-1]["rollout/ep_len_mean"] == 10
    assert np.shape(agent.evaluate(2)["returns"]) == (2,)
    agent.close()


@pytest.mark.slow
def test_ones_own_networks(tmp_path):
    def encoder(inputs, key):
        return eqx.nn.MLP(inputs, 6, 5, 1, key=key)

    networks = us.Networks(actor_encoder=encoder, critic_encoder=encoder)
    agent = tiny("TD3", NATIVE, networks)
    agent.train(40, **QUIET)
    agent.save(tmp_path / "a")
    assert b'"shape": [1, 6, 1]' in (tmp_path / "a" / "learner.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match=r"\bnetworks\b"):
        us.load(tmp_path / "a")
    loaded = us.load(tmp_path / "a", networks=networks)
    np.testing.assert_array_equal(loaded.act(OBSERVATIONS), agent.act(OBSERVATIONS))


def test_a_callback_that_has_seen_enough(tmp_path):
    agent = tiny("SAC", Lopsided)
    run = us.RunConfig(log_every=10, evaluate_every=100, evaluation_episodes=2)
    enough = (lambda facts: facts["time/total_steps"] >= 30,)
    summary = agent.train(90, run=run, run_dir=tmp_path, progress=False, callbacks=enough)
    assert summary.steps == agent.steps == 30
    assert us.load(tmp_path, env=Lopsided).steps == 30  # the way to the stop is not lost
    agent.close()
