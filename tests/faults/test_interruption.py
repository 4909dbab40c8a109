"""Signals: finish the step, save, go."""

import os
import signal
import threading

import numpy as np
import pytest

import understudy as us
from tests.faults.resume_cases import QUICK, Walk, assert_same_to_the_bit, make
from understudy.runs.signals import Interrupted, Interruption

pytestmark = pytest.mark.agents

STEPS = 240


def hit_at(steps, number):
    """A callback that has this process hit by a signal."""

    def observe(facts):
        if facts["time/total_steps"] == steps:
            os.kill(os.getpid(), number)

    return observe


@pytest.mark.fault(
    34, "a signal: the step is finished, a checkpoint is written, the exit code is 130 or 143"
)
@pytest.mark.parametrize(
    ("kind", "env", "number", "error", "code"),
    [
        ("SAC", "Pendulum-v1", signal.SIGINT, KeyboardInterrupt, None),
        pytest.param(
            "A2C", "jax:CartPole-v1", signal.SIGTERM, SystemExit, 143, marks=pytest.mark.slow
        ),
    ],
)
def test_a_signal_ends_a_run_that_goes_on_to_the_bit(tmp_path, kind, env, number, error, code):
    whole = make(kind, env)
    whole.train(STEPS, run=QUICK, progress=False)
    before = signal.getsignal(number)
    with pytest.raises(error) as caught:
        make(kind, env).train(
            STEPS, run=QUICK, run_dir=tmp_path / "run", callbacks=(hit_at(90, number),),
            progress=False,
        )  # fmt: skip
    assert code is None or caught.value.code == code
    assert signal.getsignal(number) is before
    resumed = us.load(tmp_path / "run")
    assert 0 < resumed.steps < STEPS
    resumed.train(STEPS - resumed.steps, run=QUICK, run_dir=tmp_path / "run", progress=False)
    assert_same_to_the_bit(whole, resumed, tmp_path)


class Slow(Walk):
    """Each step takes a while, and somebody loses patience in the middle of one."""

    hit = False

    def step(self, action):
        if not Slow.hit:
            Slow.hit = True
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


@pytest.mark.fault(34, "only the current step is finished, not the whole interval")
def test_a_signal_within_a_step_ends_with_that_step(tmp_path):
    Slow.hit = False
    agent = make("TD3", Slow)
    with pytest.raises(KeyboardInterrupt):
        agent.train(10_000, run=us.RunConfig(log_every=5_000), run_dir=tmp_path, progress=False)
    assert agent.steps == 1
    assert us.load(tmp_path, env=Walk).steps == 1


@pytest.mark.fault(34, "an evaluation is aborted and repeated later")
def test_an_evaluation_is_broken_off(tmp_path):
    agent = make("A2C", "jax:CartPole-v1")
    agent.evaluator.play = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit):
        agent.train(120, run=QUICK, run_dir=tmp_path, progress=False)
    resumed = us.load(tmp_path)
    assert resumed.steps == 60
    summary = resumed.train(60, run=QUICK, run_dir=tmp_path, progress=False)
    told = [f["time/total_steps"] for f in summary.history if "eval/mean_reward" in f]
    assert told == [60, 120]


def let_handlers_run():
    """Python handles a signal between two statements of the main thread."""
    for _ in range(1_000):
        pass


@pytest.mark.fault(34, "a second SIGINT is immediate")
def test_a_second_sigint_is_immediate():
    asked = []
    with pytest.raises(KeyboardInterrupt), Interruption(lambda: asked.append(1)):
        os.kill(os.getpid(), signal.SIGINT)
        assert asked == [1]
        os.kill(os.getpid(), signal.SIGINT)
        let_handlers_run()
        pytest.fail("the second one was not heard")


def test_what_may_be_broken_off_is():
    with Interruption(lambda: None) as interruption:
        with pytest.raises(Interrupted), interruption.interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
            let_handlers_run()
            pytest.fail("it was not broken off")
        with pytest.raises(Interrupted), interruption.interruptible():
            pytest.fail("it was begun after somebody had asked to stop")
        with pytest.raises(SystemExit) as caught:
            interruption.raise_signal()
    assert caught.value.code == 143


@pytest.mark.fault(34, "training works outside the main thread")
def test_off_the_main_thread(tmp_path):
    agent, summaries = make("A2C", "jax:CartPole-v1"), []

    def work():
        summaries.append(agent.train(60, run=QUICK, run_dir=tmp_path, progress=False))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert summaries[0].steps == 60 and np.isfinite(summaries[0].mean)
