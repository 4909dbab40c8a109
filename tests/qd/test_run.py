"""A run of illumination: what it logs and keeps, and that it goes on as if it had never stopped."""

from functools import partial

import jax
import numpy as np
import pytest

import understudy as us
from tests.envs.walking import Walk, place
from tests.envs.walking_native import NativeWalk
from tests.qd.qd_cases import SIZE, bits, config
from understudy.runs import checkpoint
from understudy.runs.config import QDRunConfig
from understudy.runs.csv_log import read_csv
from understudy.runs.run_directory import RunDirectory
from understudy.types import CheckpointError, ConfigError, UnderstudyError

pytestmark = pytest.mark.agents

GENERATIONS = 6
RUN = QDRunConfig(log_every=2, checkpoint_every=2, reevaluation_episodes=2)
CLOCKS = ("time/fps", "time/evaluations_per_second", "time/time_elapsed")
WORLDS = {
    "native": dict(env=NativeWalk(0.5), descriptor="position"),
    "host": dict(env=partial(Walk, 0.5), descriptor=place()),
}


def make(world, cls=us.PGAME, **settings):
    return cls(**WORLDS[world], config=config(cls is us.PGAME), **settings)


def illuminate(found, generations, run_dir=None, run=RUN, **others):
    return found.illuminate(generations * SIZE, run=run, run_dir=run_dir, progress=False, **others)


def log_of(run_dir):
    columns = read_csv(run_dir / "progress.csv")
    return {name: values for name, values in columns.items() if name not in CLOCKS}


def assert_same_log(one, other):
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


def state_of(found):
    return found.illuminator.state


@pytest.fixture(scope="module", params=["native", pytest.param("host", marks=pytest.mark.slow)])
def whole(request, tmp_path_factory):
    """A run to which nothing happened."""
    run_dir = tmp_path_factory.mktemp(request.param) / "run"
    found = make(request.param)
    summary = illuminate(found, GENERATIONS, run_dir)
    yield request.param, found, run_dir, summary
    found.close()


def test_what_is_logged(whole):
    _, found, run_dir, summary = whole
    log = log_of(run_dir)
    *rows, judged = range(len(log["time/generations"]))
    assert log["time/generations"][rows].tolist() == [2, 4, 6]
    assert log["time/evaluations"].tolist() == [2 * SIZE, 4 * SIZE, 6 * SIZE, 6 * SIZE]
    assert (np.diff(log["qd/qd_score"][rows]) >= 0).all()
    assert (log["qd/inserted"][rows] > 0).all() and (log["qd/not_finite"][rows] == 0).all()
    assert np.isfinite(log["train/critic_loss"][rows]).all()
    assert "train/discarded_updates" not in log
    metrics = found.repertoire.metrics
    assert log["qd/coverage"][rows[-1]] == pytest.approx(metrics["coverage"])
    assert summary.evaluations == found.evaluations == GENERATIONS * SIZE
    # One rate in the log, in the summary and on the page: all evaluations over all the time.
    clocks = read_csv(run_dir / "progress.csv")
    rate, elapsed = (clocks[name][rows[-1]] for name in CLOCKS[1:])
    assert rate == pytest.approx(summary.evaluations / elapsed)
    assert summary.seconds >= 0.9 * elapsed
    assert summary.metrics["qd_score"] == pytest.approx(metrics["qd_score"])
    assert summary.corrected is not None
    assert log["qd/corrected_qd_score"][judged] == pytest.approx(summary.corrected["qd_score"])
    assert (run_dir / "heat_map.png").stat().st_size > 1_000
    kept = [int(one.name) for one in checkpoint.numbered(run_dir)]
    assert kept == [4 * SIZE, 6 * SIZE]


def test_steps_are_those_of_all_evaluations(whole):
    _, found, run_dir, _ = whole
    assert log_of(run_dir)["time/total_steps"][-1] == np.sum(state_of(found).experience.stored)


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures take longer than these runs."""
    monkeypatch.setattr("understudy.agent.illumination.Illumination.draw", lambda *_: None)


@pytest.mark.fault(30, "the same for quality-diversity, on native and on host environments")
@pytest.mark.slow
@pytest.mark.parametrize("how", ["its callback raised", "killed"])
def test_a_run_goes_on_as_if_it_had_never_stopped(whole, tmp_path, monkeypatch, undrawn, how):
    world, found, run_dir, _ = whole
    save = RunDirectory.checkpoint

    def stop(facts):
        if facts.get("time/generations") == 4:
            if how == "killed":  # nothing is saved any more
                monkeypatch.setattr(RunDirectory, "checkpoint", lambda *_: None)
            raise RuntimeError("a callback's mistake")

    begun = make(world)
    with pytest.raises(RuntimeError, match="a callback's mistake"):
        illuminate(begun, GENERATIONS, tmp_path / "run", callbacks=(stop,))
    begun.close()
    monkeypatch.setattr(RunDirectory, "checkpoint", save)
    resumed = us.PGAME.load(tmp_path / "run", **WORLDS[world])
    done = resumed.evaluations // SIZE
    assert 0 < done < GENERATIONS
    illuminate(resumed, GENERATIONS - done, tmp_path / "run")
    resumed.close()
    assert bits(state_of(resumed)) == bits(state_of(found))
    assert_same_log(log_of(tmp_path / "run"), log_of(run_dir))


def test_a_callback_can_end_a_run(tmp_path, undrawn):
    found, brief = make("native", us.MAPElites), QDRunConfig(log_every=2, reevaluation_episodes=0)
    callbacks = (lambda facts: True,)
    summary = illuminate(found, GENERATIONS, tmp_path / "run", brief, callbacks=callbacks)
    assert summary.evaluations == found.evaluations == 2 * SIZE
    assert us.MAPElites.load(tmp_path / "run", **WORLDS["native"]).evaluations == 2 * SIZE


@pytest.mark.slow
def test_what_was_saved_in_the_middle_of_a_row_goes_on_as_well(whole, tmp_path, undrawn):
    """Sums that the log has not told of yet come back."""
    world, found, run_dir, _ = whole
    odd = QDRunConfig(log_every=2, checkpoint_every=3, reevaluation_episodes=2)
    ours = make(world)
    illuminate(ours, 3, tmp_path / "run", QDRunConfig(log_every=4, reevaluation_episodes=0))
    theirs = us.PGAME.load(tmp_path / "run", **WORLDS[world])
    illuminate(theirs, GENERATIONS - 3, tmp_path / "run", odd)
    assert bits(state_of(theirs).repertoire) == bits(state_of(found).repertoire)
    assert (
        log_of(tmp_path / "run")["time/total_steps"][-1]
        == (log_of(run_dir)["time/total_steps"][-1])
    )
    for each in (ours, theirs):
        each.close()


@pytest.mark.slow
@pytest.mark.parametrize("world", [pytest.param("native", marks=pytest.mark.slow), "host"])
def test_map_elites_comes_back_too(tmp_path, world):
    once = make(world, us.MAPElites)
    illuminate(once, 3, run=QDRunConfig(reevaluation_episodes=0))
    place_of_it = once.save(tmp_path / "kept", experience=False)
    again = us.MAPElites.load(place_of_it, **WORLDS[world])
    assert bits(state_of(again)) == bits(state_of(once))
    for each in (once, again):
        illuminate(each, 2, run=QDRunConfig(reevaluation_episodes=0))
        each.close()
    assert bits(state_of(again)) == bits(state_of(once))


def test_without_experience_there_is_a_repertoire_but_no_way_on(whole, tmp_path):
    world, found, _, _ = whole
    kept = us.PGAME.load(found.save(tmp_path / "kept", experience=False), **WORLDS[world])
    assert bits(kept.repertoire.cells) == bits(found.repertoire.cells)
    with pytest.raises(CheckpointError, match="not the experience to go on from"):
        illuminate(kept, 1)
    kept.close()


def test_how_often_things_happen_is_checked():
    with pytest.raises(ConfigError, match="log_every must be at least 1, got 0; keep_checkpoints"):
        QDRunConfig(log_every=0, keep_checkpoints=0)
    with pytest.raises(ConfigError, match="checkpoint_every must be at least 0"):
        QDRunConfig(checkpoint_every=-1)


@pytest.mark.slow
@pytest.mark.fault(
    23, "out of memory in an illumination: the error names the sizes and the last checkpoint"
)
def test_out_of_memory_is_explained(tmp_path):
    found = make("native")
    illuminator = found.illuminator
    advance = illuminator.advance

    def too_much(generations):
        if int(illuminator.state.generation) >= 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating")
        advance(generations)

    illuminator.advance = too_much
    with pytest.raises(UnderstudyError, match=f"generation_size {SIZE}, cells") as error:
        illuminate(found, GENERATIONS, tmp_path)
    assert str(checkpoint.place_of(tmp_path, 2 * SIZE)) in str(error.value)
