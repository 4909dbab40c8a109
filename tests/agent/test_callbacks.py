"""Callbacks in the training of whole agents: every loop, and a training that is resumed."""

import jax
import numpy as np
import pytest

import understudy as us
from tests.faults.resume_cases import QUICK, Walk, arrays_of, assert_same_to_the_bit, make, stop_at
from understudy.runs import checkpoint

pytestmark = pytest.mark.agents

QUIET = dict(run=QUICK, progress=False)


class Following(us.Callback):
    """Notes the steps of chunks, and all episodes."""

    def __init__(self):
        self.chunks, self.episodes = [], []

    def on_chunk(self, agent):
        self.chunks.append(agent.steps)

    def on_episode(self, agent, episode):
        assert episode.steps == agent.steps
        self.episodes.append(episode)

    def state_dict(self):
        return {"chunks": self.chunks, "episodes": [one.total_reward for one in self.episodes]}

    def load_state_dict(self, state):
        self.loaded = state


CASES = [
    ("DDPG", Walk, dict(num_envs=2, num_seeds=2), 2),
    ("DDPG", Walk, dict(chunk_steps=7), 7),
    ("A2C", "CartPole-v1", dict(horizon=7), 7),
    ("DDQN", "jax:CartPole-v1", dict(num_seeds=2), 100),
]


@pytest.mark.parametrize(("kind", "env", "settings", "chunk"), CASES)
def test_following_changes_nothing_and_misses_nothing(tmp_path, kind, env, settings, chunk):
    plain, followed, one = make(kind, env, **settings), make(kind, env, **settings), Following()
    plain.train(240, **QUIET)
    summary = followed.train(240, callbacks=one, **QUIET)
    position, other = (arrays_of(agent, tmp_path / "a")[1] for agent in (plain, followed))
    assert position == other
    assert one.chunks == list(range(chunk, 241, chunk))
    counted = [row for row in summary.history if "rollout/ep_len_mean" in row]
    assert len(one.episodes) > 3 and counted
    # Every episode of a row is in a call of the hook, or waits for the end of its chunk.
    waiting = followed.capture(False)[1]["callbacks"]["episodes"]
    told = [(e.seed_index, e.total_reward, e.length) for e in one.episodes]
    told += [tuple(e[:3]) for e in waiting]
    assert sorted({seed for seed, _, _ in told}) == list(range(settings.get("num_seeds", 1)))
    arrays, others = (agent.capture(True)[0]["learner"] for agent in (plain, followed))
    for name, array in arrays.items():
        assert array.tobytes() == others[name].tobytes(), name
    plain.close(), followed.close()


def test_the_hook_gets_the_episodes_of_the_rows():
    """With one seed, the means of the rows are means of these episodes, in their order."""
    agent, one = make("DDPG", Walk), Following()
    history = agent.train(240, callbacks=one, **QUIET).history
    left = [(episode.total_reward, episode.length) for episode in one.episodes]
    for row in (row for row in history if "rollout/ep_rew_mean" in row):
        count = next(
            n for n in range(1, len(left) + 1)
            if np.mean([r for r, _ in left[:n]]) == row["rollout/ep_rew_mean"]
            and np.mean([m for _, m in left[:n]]) == row["rollout/ep_len_mean"]
        )  # fmt: skip
        left = left[count:]
    assert not left
    agent.close()


@pytest.mark.parametrize(("kind", "env", "settings", "chunk"), [CASES[1], CASES[3]])
def test_a_resumed_training_calls_the_same_hooks(tmp_path, kind, env, settings, chunk):
    """Stopped within a chunk: an episode that had ended in it is reported at the chunk's end."""
    whole, one = make(kind, env, **settings), Following()
    whole.train(240, callbacks=one, **QUIET)
    stopped, first, second = make(kind, env, **settings), Following(), Following()
    stopped.train(240, callbacks=[first, stop_at(120)], **QUIET)
    stopped.save(tmp_path / "stopped")
    again = us.load(tmp_path / "stopped", env=env)
    again.train(120, callbacks=[second], **QUIET)
    assert first.chunks + second.chunks == one.chunks
    assert first.episodes + second.episodes == one.episodes
    assert second.loaded == first.state_dict()
    assert_same_to_the_bit(whole, again, tmp_path)
    for agent in (whole, stopped, again):
        agent.close()


class Busy(us.Callback):
    """Uses the agent in the middle of its training."""

    def __init__(self, directory):
        self.directory = directory

    def on_chunk(self, agent):
        if agent.steps == 40:
            agent.set(learning_rate=1e-4)
            self.returns = agent.evaluate(2)["returns"]
            agent.save(self.directory / "mine")
            self.weights = agent.get_weights()
            agent.log("custom/action", agent.act(np.zeros(2))[0])

    def on_checkpoint(self, agent, path):
        self.path = path


def test_an_agent_is_usable_in_training(tmp_path):
    agent, busy = make("TD3", Walk), Busy(tmp_path)
    run = us.RunConfig(log_every=30, evaluate_every=60, evaluation_episodes=1)
    history = agent.train(80, run=run, run_dir=tmp_path / "run", callbacks=busy, progress=False)
    assert us.load(tmp_path / "mine", env=Walk).steps == 40
    saved = us.load(tmp_path / "mine", env=Walk)
    assert saved.evaluate(2)["returns"] == busy.returns
    jax.tree.map(np.testing.assert_array_equal, saved.get_weights(), busy.weights)
    assert busy.path == checkpoint.place_of(tmp_path / "run", 80)
    assert ["custom/action" in row for row in history.history] == [False, True, False]
    assert "custom/action" in (tmp_path / "run" / "progress.csv").read_text()
    assert agent.trainer.learner.state.hyper["learning_rate"][0] == np.float32(1e-4)
    agent.close()


def test_illumination_calls_hooks_that_make_sense(tmp_path):
    class Naming(us.Callback):
        def __init__(self):
            self.calls = []

        def on_train_start(self, agent):
            self.calls.append(repr(agent))
            agent.log("custom/mine", 3)

        def on_checkpoint(self, agent, path):
            self.calls.append(path.name)

        def on_train_end(self, agent):
            self.calls.append(agent.evaluations)

    config = us.MAPElitesConfig(generation_size=4, grid=(2, 2), hidden_sizes=(4,))
    found, one = us.MAPElites("jax:PointNavigation-v0", config), Naming()
    run = us.QDRunConfig(reevaluation_episodes=0, log_every=1)
    done = found.illuminate(8, run=run, run_dir=tmp_path, callbacks=one, progress=False)
    assert one.calls == [f"{found!r}".replace("8 ev", "0 ev"), "000000000008", 8]
    assert [row.get("custom/mine") for row in done.history] == [3.0, None]
    assert us.MAPElites.load(tmp_path).evaluations == 8
    with pytest.raises(us.UnderstudyError, match=r"Following.on_chunk: illuminate does not call"):
        found.illuminate(8, callbacks=Following())
