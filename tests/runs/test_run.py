"""A run logs, evaluates and saves when it should. The trainer here only counts."""

import itertools

import jax
import numpy as np
import pytest

from tests.runs.counting import Counting, run
from understudy.runs import checkpoint
from understudy.runs.config import RunConfig
from understudy.types import ConfigError, UnderstudyError


def expected(start, steps, num_envs, log_every, evaluate_every):
    """By definition: a multiple is met at the first step that can be taken at or beyond it."""
    final = start - (-steps // num_envs) * num_envs

    def met(interval):
        multiples = range(1, final // interval + 1) if interval else ()
        passed = (multiple * interval for multiple in multiples)
        return {start - (start - p) // num_envs * num_envs for p in passed if p > start}

    evaluations = met(evaluate_every) | {final}
    return sorted(met(log_every) | evaluations), sorted(evaluations)


def test_log_and_evaluation_cadence():
    summary, rows, evaluated = run(Counting(), 60, log_every=10, evaluate_every=25)
    assert rows == [10, 20, 25, 30, 40, 50, 60]
    assert evaluated == [25, 50, 60]
    assert summary.steps == 60


def test_multiples_are_counted_from_the_beginning_of_the_agent():
    summary, rows, evaluated = run(Counting(iterations=7), 20, log_every=10, evaluate_every=25)
    assert rows == [10, 20, 25, 27]
    assert evaluated == [25, 27]
    assert summary.steps == 20


def test_several_environments_that_do_not_divide_the_intervals():
    trainer = Counting(num_envs=4)
    summary, rows, evaluated = run(trainer, 50, log_every=10, evaluate_every=25)
    assert rows == [12, 20, 28, 32, 40, 52]
    assert evaluated == [28, 52]
    assert summary.steps == trainer.steps == sum(trainer.advanced) * 4 == 52


def test_an_evaluation_passed_in_the_same_step_as_a_log_is_made():
    """16 environments step from 992 to 1008, over 1000 (log) and 1005 (evaluation)."""
    _, rows, evaluated = run(Counting(num_envs=16), 1008 + 16, log_every=1000, evaluate_every=1005)
    assert rows == [1008, 1024]
    assert evaluated == [1008, 1024]


def test_the_cadence_by_definition():
    cases = itertools.product((0, 1, 2), (1, 2, 3, 4), (3, 6, 9, 12, 15), (0, 4, 8, 12), (23, 32))
    for start, num_envs, log_every, evaluate_every, steps in cases:
        trainer = Counting(num_envs=num_envs, iterations=start)
        settings = dict(log_every=log_every, evaluate_every=evaluate_every)
        wanted = expected(trainer.steps, steps, num_envs, **settings)
        _, rows, evaluated = run(trainer, steps, **settings)
        assert (rows, evaluated) == wanted, (start, num_envs, steps, settings)


@pytest.mark.parametrize("evaluate_every", [0, 7, 10_000])
def test_the_end_is_always_evaluated_once(evaluate_every):
    summary, rows, evaluated = run(Counting(), 21, log_every=1000, evaluate_every=evaluate_every)
    assert evaluated[-1] == rows[-1] == 21 and evaluated.count(21) == 1
    assert len(evaluated) == (3 if evaluate_every == 7 else 1)
    np.testing.assert_array_equal(summary.returns, [[0, 1, 2, 3]])
    assert summary.mean == 1.5


def test_what_a_row_says():
    trainer = Counting(metrics={"actor_loss": np.array([1.0])})
    summary, _, _ = run(trainer, 10, log_every=5)
    early, late = summary.history
    assert early["rollout/ep_rew_mean"] == 1.0 and early["rollout/ep_len_mean"] == 5.0
    assert early["train/actor_loss"] == 1.0
    assert early["time/updates"] == 10 and late["time/updates"] == 20
    assert early["time/fps"] > 0 and late["time/time_elapsed"] >= early["time/time_elapsed"]
    assert "eval/mean_reward" not in early
    assert late["eval/mean_reward"] == 1.5
    assert late["eval/std_reward"] == pytest.approx(np.std([0, 1, 2, 3]))
    assert not [name for name in late if name.endswith("_per_seed")]


def test_several_members_are_averaged_and_listed():
    trainer = Counting(num_seeds=2, metrics={"critic_loss": np.array([1.0, 3.0])})
    summary, _, _ = run(trainer, 10, log_every=10)
    [row] = summary.history
    assert row["rollout/ep_rew_mean"] == 6.0 and row["rollout/ep_rew_per_seed"] == [1.0, 11.0]
    assert row["rollout/ep_len_mean"] == 5.5
    assert row["train/critic_loss"] == 2.0
    assert row["eval/mean_reward"] == 3.5 and row["eval/mean_reward_per_seed"] == [1.5, 5.5]
    assert summary.returns is not None and summary.returns.shape == (2, 4)


def test_before_any_episode_has_ended_nothing_is_said_about_returns():
    summary, _, _ = run(Counting(ended=False), 10, log_every=10)
    assert not [name for name in summary.history[0] if name.startswith("rollout/")]


def test_every_callback_gets_every_row():
    seen = ([], [])
    callbacks = [lambda row, place=place: seen[place].append(row) for place in (0, 1)]
    summary, rows, _ = run(Counting(), 30, callbacks, log_every=10, evaluate_every=0)
    assert seen[0] == seen[1] == summary.history
    assert rows == [10, 20, 30]


def test_a_callback_may_ask_to_stop():
    told = []

    def enough(row):
        return row["time/total_steps"] >= 20

    trainer = Counting()
    summary, _, _ = run(trainer, 100, [enough, told.append], log_every=10, evaluate_every=10)
    assert summary.steps == trainer.steps == 20
    assert told[1]["time/total_steps"] == 20  # those after the one that stops are told, too


def test_a_stopped_run_ends_with_an_evaluation():
    """Otherwise nobody would know how good the agent is that was stopped."""
    summary, _, evaluated = run(
        Counting(), 100, [lambda row: row["time/total_steps"] >= 20], evaluate_every=50,
        log_every=10,
    )  # fmt: skip
    assert evaluated == [20]
    assert summary.returns is not None


def test_anything_but_true_goes_on():
    for answer in (None, False):
        summary, _, _ = run(Counting(), 30, [lambda row, a=answer: a], log_every=10)
        assert summary.steps == 30


def test_a_summary_introduces_itself():
    summary, _, _ = run(Counting(), 30)
    assert repr(summary).startswith("Summary(steps=30, ") and "evaluation_mean=1.5" in repr(summary)


def test_all_problems_of_a_run_config_are_reported_together():
    with pytest.raises(ConfigError) as error:
        RunConfig(log_every=0, evaluate_every=-1, evaluation_episodes=0)
    for name in ("log_every", "evaluate_every", "evaluation_episodes"):
        assert name in str(error.value)
    assert RunConfig(evaluate_every=0).evaluate_every == 0


def test_checkpoints_are_kept_at_their_own_interval_and_at_the_end(saved, tmp_path):
    settings = dict(log_every=30, evaluate_every=0, checkpoint_every=40)
    run(Counting(), 100, run_dir=tmp_path / "often", **settings)
    assert saved == [40, 80, 100]
    assert [int(one.name) for one in checkpoint.numbered(tmp_path / "often")] == [80, 100]
    saved.clear()
    run(Counting(), 100, run_dir=tmp_path / "once", log_every=30, checkpoint_every=0)
    assert saved == [100]


def test_without_an_interval_checkpoints_follow_the_clock(saved, tmp_path, monkeypatch):
    run(Counting(), 100, run_dir=tmp_path / "quick", log_every=30)
    assert saved == [100]
    saved.clear()
    monkeypatch.setattr("understudy.runs.run.SECONDS_BETWEEN", -1.0)
    run(Counting(), 100, run_dir=tmp_path / "slow", log_every=30)
    assert saved == [30, 60, 90, 100, 100]


def test_what_was_not_told_before_a_stop_is_told_first():
    trainer = Counting(iterations=20)
    trainer.position.logged = 10
    _, rows, evaluated = run(trainer, 20, log_every=10, evaluate_every=20)
    assert rows == [20, 30, 40] and evaluated == [20, 40]


@pytest.mark.fault(36, "a callback that raises: a checkpoint, then its own error")
def test_a_callback_that_raises_costs_nothing_that_was_learned(saved, tmp_path):
    def broken(row):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(Counting(), 100, [broken], tmp_path, log_every=30)
    assert saved == [30]


@pytest.mark.fault(20, "ten discarded updates in a row: stop, naming the last good checkpoint")
def test_an_error_in_training_names_the_last_good_checkpoint(saved, tmp_path):
    class Diverging(Counting):
        def metrics(self):
            if self.steps >= 60:
                raise UnderstudyError("training diverged")
            return {}

    with pytest.raises(UnderstudyError, match=r"diverged; the last good checkpoint is .*0050$"):
        run(Diverging(), 100, run_dir=tmp_path, log_every=30, checkpoint_every=50)


@pytest.mark.fault(23, "out of memory: the error names batch, capacity and the last checkpoint")
def test_an_accelerator_out_of_memory_is_explained(saved, tmp_path):
    class Small(Counting):
        def advance(self, iterations):
            if self.steps >= 30:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
            super().advance(iterations)

    with pytest.raises(UnderstudyError, match="batch_size 256, buffer_size 1,000,000") as error:
        run(Small(), 100, run_dir=tmp_path, log_every=30, checkpoint_every=30)
    assert str(checkpoint.place_of(tmp_path, 30)) in str(error.value)


@pytest.mark.parametrize(
    ("steps", "num_envs", "episode_steps", "log_every", "evaluate_every"),
    [
        (10_000, 1, 200, 1_000, 2_000),  # Pendulum: five evaluations of 200 steps are a tenth
        (1_000_000, 1, 1_000, 1_000, 50_000),  # HalfCheetah: never more than twenty
        (20_000, 1, 1_000, 1_000, 10_000),
        (5_000, 1, 1_000, 1_000, 5_000),  # the one at the end aside
        (1_000_000, 1_024, 200, 102_400, 1_000_000),
        (1_000_000, 8, 500, 1_000, 50_000),
    ],
)
def test_default_intervals(steps, num_envs, episode_steps, log_every, evaluate_every):
    completed = RunConfig().completed(steps, num_envs, episode_steps)
    assert (completed.log_every, completed.evaluate_every) == (log_every, evaluate_every)
    evaluations = steps // evaluate_every
    if evaluations > 1:  # in vector steps
        assert evaluations * episode_steps <= steps / num_envs / 10
    given = RunConfig(log_every=7, evaluate_every=0)
    assert given.completed(steps, num_envs, episode_steps) == given


@pytest.mark.parametrize(
    ("num_envs", "iterations", "log_every"),
    [(1, 100, 1_000), (256, 128, 128 * 256), (8, 1_024, 1_024 * 8), (1, 128, 1_024)],
)
def test_rows_of_the_log_end_with_whole_programs(num_envs, iterations, log_every):
    completed = RunConfig().completed(1_000_000, num_envs, 1_000, iterations)
    assert completed.log_every == log_every
