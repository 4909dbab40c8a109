"""What happens to a run directory: full, read-only, gone, in use, another run's."""

import errno
import json
import os
import shutil
import threading

import numpy as np
import pytest

import understudy as us
from tests.faults.resume_cases import QUICK, make
from understudy.runs import checkpoint
from understudy.runs.files import lock_directory
from understudy.training.episode_runner import EpisodeResults
from understudy.types import CheckpointError, ConfigError

pytestmark = pytest.mark.agents

KIND, ENV = "A2C", "jax:CartPole-v1"  # the quickest to compile
OFTEN = us.RunConfig(log_every=20, evaluate_every=0, evaluation_episodes=1, checkpoint_every=20)


@pytest.fixture
def full_disk(monkeypatch):
    """Call it, and nothing can be written any more; with False, it can again."""
    fsync = os.fsync

    def fail(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    return lambda full=True: monkeypatch.setattr(os, "fsync", fail if full else fsync)


def steps_kept(run):
    return [int(place.name) for place in checkpoint.numbered(run)]


@pytest.mark.fault(25, "disk full: the last checkpoint stays, an error each time, then a stop")
def test_a_full_disk_ends_the_run_after_three_failures(tmp_path, caplog, full_disk, monkeypatch):
    agent = make(KIND, ENV)
    write, written = checkpoint.write, threading.Event()

    def write_and_report(place, *contents):
        write(place, *contents)
        if int(place.name) == 40:
            written.set()

    def fill(facts):
        if facts["time/total_steps"] == 40:
            assert written.wait(300)
            full_disk()

    monkeypatch.setattr(checkpoint, "write", write_and_report)
    with pytest.raises(CheckpointError, match=r"3 checkpoints in a row.*No space"):
        agent.train(400, run=OFTEN, run_dir=tmp_path, callbacks=(fill,), progress=False)
    kept = steps_kept(tmp_path)
    assert kept == [20, 40]
    assert agent.steps == 100  # at the third failure, not at the checkpoint after it
    assert caplog.text.count("was not written") == 3
    assert not list(tmp_path.rglob("*.tmp"))  # and no half of one
    full_disk(False)
    assert us.load(tmp_path).steps == kept[-1]


@pytest.mark.slow
@pytest.mark.fault(25, "if the disk has space again, no checkpoint is lost")
def test_a_disk_that_has_room_again(tmp_path, full_disk):
    agent = make(KIND, ENV)

    def change(facts):
        full_disk(facts["time/total_steps"] == 40)

    agent.train(120, run=OFTEN, run_dir=tmp_path, callbacks=(change,), progress=False)
    assert steps_kept(tmp_path) == [100, 120]


@pytest.mark.fault(26, "a last checkpoint that cannot be written is never a success")
def test_a_vanished_directory_is_no_success(tmp_path):
    run = tmp_path / "run"
    agent = make(KIND, ENV)

    def vanish(facts):
        shutil.rmtree(run)
        run.write_text("something else")

    with pytest.raises((CheckpointError, OSError)):
        agent.train(20, run=OFTEN, run_dir=run, callbacks=(vanish,), progress=False)


@pytest.mark.fault(26, "a directory that cannot be written to is refused at the start")
def test_an_unwritable_directory_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    agent = make(KIND, ENV)
    with pytest.raises(ConfigError, match="cannot be written to"):
        agent.train(20, run_dir=tmp_path / "file" / "run", progress=False)
    assert agent.steps == 0


@pytest.mark.fault(33, "two runs in one directory: the second gets an error at once")
def test_two_runs_in_one_directory(tmp_path):
    agent = make(KIND, ENV)
    with (
        lock_directory(tmp_path),
        pytest.raises(CheckpointError, match=rf"in use by another run \(process {os.getpid()}"),
    ):
        agent.train(20, run_dir=tmp_path, progress=False)
    assert agent.steps == 0
    assert not (tmp_path / "run.lock").exists()


@pytest.mark.fault(33, "a stale lock is recovered")
def test_a_stale_lock_is_recovered(tmp_path):
    (tmp_path / "run.lock").write_text("process 1 on another-machine\n")  # its holder is gone
    (tmp_path / ".run.json.0123abcd.tmp").write_text("{")  # and left this half written
    agent = make(KIND, ENV)
    agent.train(20, run=QUICK, run_dir=tmp_path, progress=False)
    assert steps_kept(tmp_path) == [20] and not list(tmp_path.glob(".*"))


def test_another_runs_directory_is_not_touched(tmp_path):
    make(KIND, ENV).train(20, run=QUICK, run_dir=tmp_path, progress=False)
    log = (tmp_path / "progress.csv").read_bytes()
    with pytest.raises(ConfigError, match=r"another run.*understudy resume"):
        make(KIND, ENV).train(20, run=QUICK, run_dir=tmp_path, progress=False)
    assert (tmp_path / "progress.csv").read_bytes() == log
    assert json.loads((tmp_path / "run.json").read_text())["total_steps"] == 20


@pytest.mark.fault(24, "at most one interval is lost, and the log has no row twice")
def test_a_run_goes_on_from_its_last_checkpoint(tmp_path):
    """As after a kill: the log knows of steps that no checkpoint does."""
    agent = make(KIND, ENV)
    agent.train(100, run=OFTEN, run_dir=tmp_path / "run", progress=False)
    shutil.rmtree(checkpoint.place_of(tmp_path / "run", 100))
    resumed = us.load(tmp_path / "run")
    assert resumed.steps == 80
    resumed.train(20, run=OFTEN, run_dir=tmp_path / "run", progress=False)
    rows = (tmp_path / "run" / "progress.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[0]) for row in rows] == [20, 40, 60, 80, 100]


@pytest.mark.fault(37, "after a run: no temporary file, no lock")
def test_a_run_leaves_only_what_it_promises(tmp_path):
    agent = make(KIND, "CartPole-v1")
    agent.train(100, run=OFTEN, run_dir=tmp_path, progress=False)
    agent.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best", "checkpoints", "episodes.csv", "learning_curve.png", "policy.safetensors",
        "progress.csv", "run.json",
    ]  # fmt: skip
    assert us.runner.load(tmp_path / "policy.safetensors").about["algorithm"] == "a2c"


@pytest.mark.slow
def test_the_last_checkpoint_knows_the_last_evaluation(tmp_path):
    """Also where it was due before the evaluation of the same step."""
    agent = make(KIND, ENV, num_seeds=2)
    agent.evaluator.runners[agent.evaluator.plan_selection(1)] = Judge()
    agent.train(40, run=OFTEN, run_dir=tmp_path, progress=False)
    assert us.load(tmp_path).best.seed == agent.best.seed == agent.seed + 1


class Judge:
    """Finds the second member better."""

    def run(self, policy):
        return EpisodeResults(np.array([0.0, 1.0]), np.ones(2), None)

    def close(self):
        pass


def test_one_that_stepped_aside_is_found(tmp_path):
    """Killed while the only checkpoint was being replaced by another of the same step."""
    make(KIND, ENV).train(20, run=OFTEN, run_dir=tmp_path, progress=False)
    [place] = checkpoint.numbered(tmp_path)
    place.rename(place.with_name(f".{place.name}.previous"))
    assert us.load(tmp_path).steps == 20
