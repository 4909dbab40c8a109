"""The example of a control loop, with a robot and a clock that follow a script."""

import runpy

import numpy as np
import pytest

from tests.contracts.sources import REPOSITORY
from tests.test_runner import a_counter, a_description
from understudy.runner import Player

control = runpy.run_path(str(REPOSITORY / "examples" / "real_time_loop.py"))["control"]
PERIOD, START = 0.25, 100.0  # both exact in floating point
SAFE = np.full(2, -9.0, np.float32)  # no policy gives this


class Robot:
    """A robot and its clock. `script` maps the number of an observation to what goes wrong."""

    def __init__(self, script):
        self.script, self.now, self.observed, self.sent = script, START, -1, []

    def observe(self):
        self.observed += 1
        fault = self.script.get(self.observed)
        if isinstance(fault, Exception):
            raise fault
        if isinstance(fault, float):  # the periods that it takes
            self.now += fault * PERIOD
        seen = np.full(2, np.nan if fault == "nan" else 0.25)
        return seen, self.now - (1.25 * PERIOD if fault == "old" else 0.0)

    def send(self, action):
        self.sent.append((self.now, action))

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        assert seconds >= 0
        self.now += seconds

    def run(self, description, steps=5):
        settings = dict(rate=1 / PERIOD, clock=self)
        return control(Player(description), self.observe, self.send, SAFE, steps, **settings)


def test_actions_are_sent_at_the_rate_and_a_safe_one_last():
    robot = Robot({})
    worst, count = robot.run(a_description())
    times = [START + PERIOD * number for number in (1, 2, 3, 4, 5, 5)]
    assert [time for time, _ in robot.sent] == times
    assert worst <= 0 and count == 0
    for _, action in robot.sent[:-1]:
        np.testing.assert_array_equal(action, [0.5, 0.5])
    assert robot.sent[-1][1] is SAFE


@pytest.mark.parametrize("fault", [OSError("the sensor does not answer"), "nan", "old"])
def test_a_fault_costs_one_action(fault, capsys):
    robot = Robot({2: fault})
    worst, count = robot.run(a_description())
    assert worst <= 0 and count == 1
    assert [action is SAFE for _, action in robot.sent] == [False, False, True, False, False, True]
    assert [time for time, _ in robot.sent[:3]] == [START + PERIOD * n for n in (1, 2, 3)]
    reasons = {"nan": "not a finite number", "old": ""}
    assert reasons.get(str(fault), "the sensor does not answer") in capsys.readouterr().out


@pytest.mark.parametrize(("takes", "times"), [(1.5, [1, 2.5, 3, 4]), (3.5, [1, 4.5, 5, 6])])
def test_a_late_action_is_replaced_and_no_burst_follows(takes, times):
    robot = Robot({1: takes})
    worst, count = robot.run(a_description(), steps=4)
    assert worst == (takes - 1) * PERIOD and count == 1
    assert [action is SAFE for _, action in robot.sent] == [False, True, False, False, True]
    assert [(time - START) / PERIOD for time, _ in robot.sent] == [*times, times[-1]]


def test_the_memory_goes_from_step_to_step():
    robot = Robot({1: "old"})
    robot.run(a_counter(), steps=3)
    sums = [np.arctanh(action[0]) for _, action in robot.sent if action is not SAFE]
    np.testing.assert_allclose(sums, [0.25, 0.5], rtol=1e-5)
