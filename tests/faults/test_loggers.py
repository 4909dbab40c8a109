"""A tracker that is down costs one warning and no training."""

import logging

import pytest

import understudy as us
from understudy.runs.loggers import Guarded, TensorBoard, open_loggers

pytestmark = pytest.mark.agents


@pytest.fixture(scope="module")
def agent():
    """Every test that uses it trains it further."""
    return us.A2C("jax:CartPole-v1", us.A2CConfig(hidden_sizes=(8,), horizon=5), num_envs=1)


class Tracker:
    """Breaks where it was told to."""

    def __init__(self, *broken):
        self.broken, self.calls = broken, []

    def attach(self, run_dir, about, title):
        pass

    def _do(self, what):
        self.calls.append(what)
        if what in self.broken:
            raise ConnectionError(f"no route\nto the tracker ({what})")

    def __enter__(self):
        self._do("open")
        return self

    def __call__(self, facts):
        self._do("log")

    def __exit__(self, kind, error, traceback):
        self._do("close")


@pytest.mark.fault(35, "one warning, training continues")
@pytest.mark.parametrize("broken", [("open",), ("log",), ("close",), ("log", "close")])
def test_a_broken_tracker_costs_one_warning(agent, caplog, broken):
    good = Tracker()
    pair = open_loggers([Tracker(*broken), good], None, {}, "")
    run = us.RunConfig(log_every=10, evaluate_every=0, evaluation_episodes=1)
    with caplog.at_level(logging.WARNING), pair[0] as first, pair[1] as second:
        summary = agent.train(60, run=run, callbacks=(first, second), progress=False)
    assert summary.steps == 60
    assert good.calls == ["open", *["log"] * 6, "close"]
    (warning,) = caplog.records
    assert warning.name == "understudy.runs" and warning.levelno == logging.WARNING
    text = warning.getMessage()
    assert "Tracker" in text and f"ConnectionError: no route to the tracker ({broken[0]})" in text


@pytest.mark.fault(35, "a tracker that stays down is not used again; one that recovers is")
def test_a_tracker_that_comes_back_is_used_again():
    tracker = Tracker("log")
    with Guarded(tracker) as logger:
        for _ in range(2):
            logger({})
        tracker.broken = ()
        logger({})
        tracker.broken = ("log",)
        for _ in range(10):
            logger({})
    assert tracker.calls == ["open", *["log"] * 6, "close"]


@pytest.mark.fault(35, "a logger that was never opened is neither called nor closed")
def test_what_did_not_open_is_left_alone():
    tracker = Tracker("open")
    with Guarded(tracker) as logger:
        logger({})
    assert tracker.calls == ["open"]


@pytest.mark.fault(35, "a disk that refuses TensorBoard's files gives one warning")
def test_a_place_that_cannot_be_written(tmp_path, caplog):
    (tmp_path / "taken").write_text("a file where a directory should be")
    (logger,) = open_loggers(TensorBoard(tmp_path / "taken" / "logs"), None, {}, "")
    with logger:
        logger({"time/total_steps": 1, "x": 1.0})
    (warning,) = caplog.records
    assert warning.getMessage().startswith("TensorBoard could not be opened (")


@pytest.mark.fault(35, "Ctrl-C does not count as a failure of a tracker")
def test_an_interrupt_goes_through():
    def interrupted(facts):
        raise KeyboardInterrupt

    tracker = Tracker()
    tracker._do = lambda what: interrupted(what) if what == "log" else tracker.calls.append(what)
    with pytest.raises(KeyboardInterrupt), Guarded(tracker) as logger:
        logger({})
    assert tracker.calls == ["open", "close"]
