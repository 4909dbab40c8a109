"""EnvPool's environments: ends of episodes, seeds, spaces, arguments. Most tests use a fake
with EnvPool's interface; the last ones need the real package."""

import sys

import cloudpickle
import numpy as np
import pytest

import understudy as us
from tests.envs.fake_envpool import FakePool, make_fake
from understudy.envs import EpisodeSeeds, resolve
from understudy.types import EnvironmentError

SMALL = dict(hidden_sizes=(8,), batch_size=4, buffer_size=128, start_steps=4, min_buffer_size=8)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", make_fake())
    FakePool.made.clear()


def play(source, steps, seeds=None, rows=2, action=None):
    """The first observations, and the steps with one action."""
    envs = source.make_host(rows, seeds or EpisodeSeeds(0, rows))
    first = envs.reset()
    chosen = np.full((rows, 1), 0.5, np.float32) if action is None else action
    return first, [envs.step(chosen) for _ in range(steps)], envs


def test_a_time_limit_truncates_and_the_reset_is_no_transition(fake):
    source = resolve("envpool:Walk-v1", 2)
    assert (source.name, source.num_envs, source.time_limit) == ("envpool:Walk-v1", 2, 5)
    first, steps, envs = play(source, 8)
    for step in steps[:5]:
        assert step.valid.all() and not step.terminated.any()
    np.testing.assert_array_equal([step.last[0] for step in steps], [0, 0, 0, 0, 1, 0, 0, 0])
    # The final observation is the true one, and the reset observation follows it nowhere.
    np.testing.assert_allclose(steps[4].next_observation[:, 0], first[:, 0] + 5, rtol=1e-5)
    np.testing.assert_array_equal(steps[4].next_observation[:, 1], 5)
    assert not steps[5].valid.any() and steps[5].reward.tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(steps[5].observation[:, 1], 0)
    assert steps[6].valid.all()
    np.testing.assert_allclose(
        steps[6].next_observation[:, 0], steps[5].observation[:, 0] + 1, rtol=1e-5
    )
    assert envs.episodes.tolist() == [1, 1] and not envs.replayable
    envs.close()
    assert all(pool.closed for pool in FakePool.made)


def test_a_fall_terminates(fake):
    _, steps, envs = play(resolve("envpool:Walk-v1", env_args={"fall_at": 3.0}), 12)
    ends = [step for step in steps if step.last.any()]
    fallen = [step.terminated for step in ends]
    assert np.any(fallen)
    for step in steps:
        over = step.next_observation[:, 0] > 3.0
        np.testing.assert_array_equal(step.terminated, over & step.valid & step.last)
    envs.close()


def test_seeds(fake):
    """A row depends on its seed alone; a restart repeats its episodes, another seed has others."""
    source = resolve("envpool:Walk-v1")
    first, steps, envs = play(source, 7, EpisodeSeeds(3, 2, num_seeds=2), rows=4)
    single, alone, _ = play(source, 7, EpisodeSeeds(4, 2), rows=2)  # seed 4 by itself
    np.testing.assert_array_equal(first[2:], single)
    np.testing.assert_array_equal(steps[-1].observation[2:], alone[-1].observation)
    assert len(set(first[:, 0].tolist())) == 4
    np.testing.assert_array_equal(envs.restart(), first)
    assert (envs.reset() != first).any()
    evaluation = source.make_host(2, EpisodeSeeds(3, 2).for_evaluation())
    assert (evaluation.reset() != first[:2]).any()
    evaluation.close()
    envs.close()


def test_threads_and_other_arguments_reach_the_pool(fake):
    source = resolve("envpool:Walk-v1", env_args={"num_threads": 3, "weight": 2.5})
    _, steps, envs = play(source, 1)
    assert FakePool.made[-1].config["num_threads"] == 3 and steps[0].reward.tolist() == [2.5, 2.5]
    envs.close()


def test_games_are_stacks_of_frames_and_evaluation_counts_points(fake):
    args = {"reward_clip": True}
    source = resolve("envpool:Game-v5", env_args=args)
    seen = source.spec.observation
    assert (seen.shape, seen.dtype, seen.frames) == ((4, 8, 8), "uint8", 4)
    assert us.envs.stack_frames(source, 4) is source
    rewards = []
    for seeds in (EpisodeSeeds(0), EpisodeSeeds(0).for_evaluation()):
        _, steps, envs = play(source, 1, seeds, rows=1, action=np.zeros(1, np.int64))
        rewards.append(steps[0].reward[0])
        envs.close()
    assert rewards == [1.0, 5.0]
    lives = resolve("envpool:Game-v5", env_args={"episodic_life": True})
    assert lives.spec.observation.frames == 1  # a lost life does not begin a new stack
    with pytest.raises(EnvironmentError, match=r"stack_num=3.*without episodic_life"):
        us.envs.stack_frames(lives, 3)


def test_collectors_on_other_machines_get_the_task(fake):
    for name in ("Walk-v1", "Game-v5"):
        source = cloudpickle.loads(cloudpickle.dumps(resolve(f"envpool:{name}")))
        envs = source.make_host(2, EpisodeSeeds(0, 2))
        assert envs.reset().shape == (2, *source.spec.observation.shape)
        assert envs.spec == source.spec  # the frames of a game, too
        envs.close()


def test_no_time_limit(fake):
    assert resolve("envpool:Endless-v1").time_limit is None


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("Wolk-v1", {}, r'EnvPool has no environment "Wolk-v1"; did you mean "envpool:Walk-v1"'),
        ("x", {}, r"envpool.list_all_envs\(\) lists all"),
        ("Walk-v1", {"foo": 1}, r"'foo'; its arguments are \(num_threads=0, max_episode_steps=5, "),
        ("Walk-v1", {"num_envs": 3}, r"does not take env_args num_envs=3: the library sets them"),
    ],
)
def test_mistakes_are_one_line(fake, name, args, message):
    with pytest.raises(EnvironmentError, match=message) as told:
        resolve(f"envpool:{name}", env_args=args)
    assert "\n" not in str(told.value)


def test_workers_are_refused(fake):
    with pytest.raises(EnvironmentError, match=r"in threads.*--env-arg num_threads=4"):
        resolve("envpool:Walk-v1").make_host(2, EpisodeSeeds(0, 2), workers=1)


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(EnvironmentError, match=r'pip install "understudy\[envpool\]"'):
        resolve("envpool:Walk-v1")


def test_presets_are_those_of_the_same_task():
    for prefix in ("", "jax:", "envpool:", "gymnax:"):
        assert us.SACConfig.preset_name(f"{prefix}Pendulum-v1") == "Pendulum-v1"


@pytest.mark.agents
def test_an_agent_trains_resumes_and_evaluates(fake, tmp_path, caplog):
    agent = us.SAC("envpool:Walk-v1", us.SACConfig(**SMALL), num_seeds=2, num_envs=2,
                   env_args={"weight": 2.0})  # fmt: skip
    run = us.RunConfig(evaluation_episodes=2, log_every=20)
    summary = agent.train(40, run=run, run_dir=tmp_path / "run", progress=False)
    infos = {key for row in summary.history for key in row if "info" in key}
    assert infos and all("distance" in key for key in infos), infos  # no numbers of rows
    assert summary.mean == 10.0  # five steps of an episode; the step of a reset is none
    assert agent.evaluate(3)["mean"] == 10.0
    agent.close()
    again = us.load(tmp_path / "run")
    again.train(8, progress=False)
    assert "cannot repeat open episodes" in caplog.text
    assert again.steps == 48 and again.env_args == {"weight": 2.0}
    again.close()


# -- the real package ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    return pytest.importorskip("envpool", reason="needs the extra envpool")


@pytest.mark.parametrize("limit", [30, 12])
def test_the_real_cart_and_pole(real, limit):
    source = resolve("envpool:CartPole-v1", env_args={"max_episode_steps": limit, "num_threads": 1})
    assert source.time_limit == limit and source.spec.action.n == 2
    first, steps, envs = play(source, 60, action=np.array([1, 0]))
    lengths, length = [], 0
    before = first
    for step in steps:
        length += step.valid[0]
        # The same action moves the cart the same way, except where the row only resets.
        moved = step.next_observation[:, 1] - before[:, 1]
        np.testing.assert_array_equal(np.sign(moved[step.valid]), np.array([1, -1])[step.valid])
        fallen = np.abs(step.next_observation[:, 2]) > np.radians(12)
        np.testing.assert_array_equal(step.terminated, fallen & step.last)
        before = step.observation
        if step.last[0]:
            lengths.append(length)
            length = 0
    assert len(lengths) > 2 and max(lengths) <= limit
    np.testing.assert_array_equal(envs.restart(), first)
    envs.close()


@pytest.mark.mujoco
def test_the_real_half_cheetah_steps_as_gymnasiums(real):
    source = resolve("envpool:HalfCheetah-v5", env_args={"reset_noise_scale": 0.0})
    host = resolve("HalfCheetah-v5", env_args={"reset_noise_scale": 0.0})
    assert source.spec == host.spec and source.time_limit == host.time_limit == 1000
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 2, 6)).astype(np.float32)
    pools = [one.make_host(2, EpisodeSeeds(0, 2)) for one in (source, host)]
    ours, theirs = (envs.reset() for envs in pools)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    for action in actions:
        ours, theirs = (envs.step(action) for envs in pools)
        np.testing.assert_allclose(ours.observation, theirs.observation, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(ours.reward, theirs.reward, rtol=1e-3, atol=1e-3)
    for envs in pools:
        envs.close()
