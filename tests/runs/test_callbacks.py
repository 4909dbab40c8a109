"""What a run calls, when, and with what. The trainer of these tests only counts."""

import json
import logging

import numpy as np
import pytest

import understudy as us
from tests.runs.counting import Counting, run
from understudy.runs import callbacks
from understudy.runs.callbacks import Callback, Callbacks, Episode, check_callbacks, is_state
from understudy.types import ConfigError


class Recorder(Callback):
    """Notes every call, and answers True at one of them."""

    def __init__(self, trainer, stop=None):
        self.trainer, self.stop, self.calls = trainer, stop, []

    def note(self, hook, *about):
        self.calls.append((hook, self.trainer.steps, *about))
        return (hook, self.trainer.steps) == self.stop

    def on_train_start(self, agent):
        return self.note("start", agent)

    def on_evaluation(self, agent, results):
        return self.note("evaluation", results["eval/mean_reward"])

    def on_log(self, agent, row):
        return self.note("log", "eval/mean_reward" in row)

    def on_checkpoint(self, agent, path):
        assert path.is_dir()
        return self.note("checkpoint", path.name)

    def on_train_end(self, agent):
        return self.note("end")


class ByChunk(Recorder):
    def on_chunk(self, agent):
        return self.note("chunk")

    def on_episode(self, agent, episode):
        return self.note("episode", episode)


def hooks(recorder, *names):
    return [call for call in recorder.calls if call[0] in names]


def test_the_order_of_hooks(tmp_path, saved):
    trainer = Counting()
    one = Recorder(trainer)
    settings = dict(log_every=10, evaluate_every=20, checkpoint_every=20)
    run(trainer, 30, one, tmp_path, owner="the agent", **settings)
    assert one.calls == [
        ("start", 0, "the agent"),
        ("log", 10, False),
        ("checkpoint", 20, "000000000020"),
        ("evaluation", 20, 1.5),
        ("log", 20, True),
        ("checkpoint", 20, "best"),
        ("evaluation", 30, 1.5),
        ("log", 30, True),
        ("checkpoint", 30, "000000000030"),
        ("end", 30),
    ]


def test_without_a_hook_on_chunks_the_run_advances_as_before():
    trainer = Counting()
    run(trainer, 30, Recorder(trainer), log_every=15)
    assert trainer.advanced == [15, 15]


def test_chunks_end_at_multiples_that_are_counted_from_the_beginning():
    trainer = Counting(num_envs=2, iterations=3)
    trainer.chunk_iterations = 4
    one = ByChunk(trainer)
    run(trainer, 26, one, log_every=10)
    # From 6 steps on; rows at 10, 20, 30 and the end at 32; a chunk is 8 steps.
    assert trainer.advanced == [1, 1, 3, 2, 2, 3, 1]
    assert [steps for _, steps in hooks(one, "chunk")] == [8, 16, 24, 32]


def test_episodes_are_told_at_the_end_of_their_chunk_and_none_is_lost():
    trainer = Counting()
    trainer.chunk_iterations = 4
    one = ByChunk(trainer)
    run(trainer, 9, one, log_every=3)  # advances to 3, 4, 6, 8, 9
    told = [(steps, episode.total_reward) for _, steps, episode in hooks(one, "episode")]
    assert told == [(4, 3.0), (4, 4.0), (8, 6.0), (8, 8.0)]
    assert all(episode.steps == steps for _, steps, episode in hooks(one, "episode"))
    assert hooks(one, "episode")[0][2] == Episode(0, 3.0, 3, 4, {})


def test_an_episode_within_a_chunk_waits_in_the_checkpoint():
    trainer = Counting()
    trainer.chunk_iterations = 4
    given = Callbacks([ByChunk(trainer)])
    given.add_episodes([Episode(1, 2.0, 3)])
    stored = json.loads(json.dumps(given.state_dict()))
    one = ByChunk(trainer)
    again = Callbacks(stored=stored).follow((one,))
    assert not again.end_chunk(None, 8)
    assert hooks(one, "episode") == [("episode", 0, Episode(1, 2.0, 3, 8, {}))]


@pytest.mark.parametrize(
    ("stop", "steps", "evaluated"),
    [
        (("chunk", 7), 7, [7]),
        (("episode", 8), 8, [8]),
        (("log", 10), 10, [10]),
        (("evaluation", 20), 20, [20]),
        (("checkpoint", 15), 15, [15]),
        (("start", 0), 0, []),
    ],
)
def test_any_hook_may_end_training(stop, steps, evaluated, tmp_path, saved):
    trainer = Counting()
    one, other = ByChunk(trainer, stop), ByChunk(trainer)
    settings = dict(log_every=10, evaluate_every=20, checkpoint_every=15)
    summary, rows, found = run(trainer, 100, [one, other], tmp_path, **settings)
    assert summary.steps == trainer.steps == saved[-1] == steps
    assert found == evaluated and rows[-1:] == evaluated
    assert other.calls[-1] == one.calls[-1] == ("end", steps)


class Broken(Callback):
    def __init__(self, hook):
        self.hook = hook

    def __getattribute__(self, name):
        if name == object.__getattribute__(self, "hook"):
            raise ZeroDivisionError("mine")
        return object.__getattribute__(self, name)

    def on_chunk(self, agent):
        """Called, because it is overridden."""

    def on_episode(self, agent, episode):
        """The same."""

    def on_checkpoint(self, agent, path):
        """The same."""


@pytest.mark.fault(36, "a hook of a callback that raises: a checkpoint, then its own error")
@pytest.mark.parametrize("hook", callbacks.HOOKS)
def test_a_hook_that_raises_costs_nothing_that_was_learned(hook, saved, tmp_path):
    trainer = Counting()
    settings = dict(log_every=10, evaluate_every=20, checkpoint_every=15)
    trainer.chunk_iterations = 3
    with pytest.raises(ZeroDivisionError, match="mine"):
        run(trainer, 100, Broken(hook), tmp_path, **settings)
    assert saved[-1] == trainer.steps


def test_a_hook_cannot_begin_a_training():
    class Nested(Callback):
        def on_log(self, agent, row):
            given.follow(())

    given = Callbacks([Nested()])
    with pytest.raises(ConfigError, match="a hook cannot begin a training"):
        given.call("on_log", None, {})
    given.follow(())  # after the training


def test_functions_and_objects_mixed():
    trainer, rows = Counting(), []
    one = Recorder(trainer)
    run(trainer, 20, [rows.append, one, lambda row: row["time/total_steps"] >= 10], log_every=10)
    assert len(rows) == 2 and [call[0] for call in one.calls].count("log") == 2  # and the final one


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            7,
            "functions of the row of the log or objects of a subclass of us.Callback",
        ),
        ([print, 7], "got 7"),
        (Recorder, r"give Recorder\(…\), not the class"),
    ],
)
def test_wrong_callbacks(given, problem):
    with pytest.raises(ConfigError, match=problem):
        check_callbacks(given)


@pytest.mark.parametrize("name", ["on_eval", "_on_step", "on_rollout_end"])
def test_a_hook_that_does_not_exist(name):
    with pytest.raises(ConfigError, match=f"Mine.{name} is no hook"):
        type("Mine", (us.Callback,), {name: lambda self: None})


class Tally(Callback):
    def __init__(self):
        self.count = 0

    def on_log(self, agent, row):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_states_are_stored_by_class_and_occurrence(caplog):
    first, second = Tally(), Tally()
    first.count, second.count = 3, 5
    stored = Callbacks((first, Recorder(None), second)).state_dict()
    assert stored["states"] == {"Tally.0": {"count": 3}, "Tally.1": {"count": 5}}
    first.count = 9
    assert stored["states"]["Tally.0"] == {"count": 3}
    fresh = Tally(), Tally()
    loaded = Callbacks(stored=stored)
    assert loaded.state_dict() == stored  # also before a training
    later = loaded.follow(fresh)
    assert [one.count for one in fresh] == [3, 5] and not caplog.records
    # If training fails before it begins, the next objects get the states.
    third = Tally(), Tally()
    later = later.follow(third)
    assert [one.count for one in third] == [3, 5]
    # Only a loaded checkpoint gives states: in one process the objects themselves go on.
    later.call("on_train_start", None)
    third = (Tally(),)
    later.follow(third)
    assert third[0].count == 0 and not caplog.records
    one = Tally()
    with caplog.at_level(logging.WARNING):
        Callbacks(stored=stored).follow((one,))
    assert one.count == 3
    assert [record.getMessage() for record in caplog.records] == [
        "the checkpoint holds the state of callbacks that this training does not have, which is "
        "dropped: Tally.1"
    ]


@pytest.mark.parametrize("state", [7, {"a": {1, 2}}, {"a": np.float32(1)}])
def test_a_state_that_cannot_be_stored_is_refused_before_training(state):
    one = Tally()
    one.state_dict = lambda: state
    with pytest.raises(ConfigError, match=r"Tally.0: state_dict\(\) must return a dict of JSON"):
        Callbacks().follow((one,))


def test_a_state_that_is_too_large():
    one = Tally()
    one.count = "x" * callbacks.LARGEST_STATE
    with pytest.raises(ConfigError, match="more than 1,000,000 characters"):
        Callbacks().follow((one,))


@pytest.mark.parametrize(
    "changes",
    [
        {"states": []}, {"states": {"Tally.0": 3}}, {"logged": {"a": [1.0]}}, {"more": 1},
        {"logged": {"a": [1.0, 0]}}, {"episodes": [[0, 1.0, 2]]}, {"episodes": [[-1, 1.0, 2, {}]]},
        {"episodes": [[0, "1", 2, {}]]}, {"episodes": [[0, 1.0, 2, {"a": "b"}]]},
    ],
)  # fmt: skip
def test_a_forged_state(changes):
    empty = Callbacks().state_dict()
    assert is_state(empty) and not is_state(None) and not is_state(empty | changes)


def test_values_of_ones_own():
    class Logging(Callback):
        def on_chunk(self, agent):
            agent.log("custom/steps", trainer.steps)

        def on_evaluation(self, agent, results):
            agent.log("custom/evaluated", np.float32(results["eval/mean_reward"]))

    trainer = Counting()
    summary, _, _ = run(trainer, 6, Logging(), log_every=3, evaluate_every=6)
    early, late = summary.history
    assert early["custom/steps"] == 2.0 and "custom/evaluated" not in early
    assert late["custom/steps"] == 5.0 and late["custom/evaluated"] == 1.5


def test_values_wait_in_the_checkpoint_for_their_row():
    given = Callbacks()
    for value in (1, True, np.array(4.0)):
        given.log("custom/a", value)
    again = Callbacks(stored=json.loads(json.dumps(given.state_dict()))).follow(())
    assert again.take_logged() == {"custom/a": 2.0} and again.take_logged() == {}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("train/mine", 1, "'train/mine' is among the library's own names.*'custom/mine'"),
        ("", 1, "a name in the log is text"),
        (3, 1, "a name in the log is text"),
        ("a\nb", 1, "a name in the log is text"),
        ("a", "1", "value of 'a' must be a finite number"),
        ("a", float("nan"), "finite"),
        ("a", [1.0], "finite"),
        ("a", None, "finite"),
    ],
)
def test_bad_values(name, value, problem):
    with pytest.raises(ConfigError, match=problem):
        Callbacks().log(name, value)
