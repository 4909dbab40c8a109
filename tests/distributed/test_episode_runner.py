"""Generations played by processes on Ray: as by one process, whatever becomes of them."""

import os
import time
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import understudy as us
from tests.distributed.swinging import Swing, angle
from understudy.distributed import episode_runner, supervisor
from understudy.distributed.config import Cluster
from understudy.envs.fault_guard import Guard
from understudy.envs.seeds import EpisodeSeeds
from understudy.types import ConfigError, EnvironmentError, UnderstudyError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray")]

SIZE = 5
SETTINGS = dict(generation_size=SIZE, grid=(4, 4), hidden_sizes=(8,), critic_hidden_sizes=(8,),
                critic_steps=2, policy_steps=2, batch_size=8, buffer_size=4_000)  # fmt: skip
CONFIG = us.PGAMEConfig(**SETTINGS)
UPRIGHT = us.Descriptor(angle, (-1.0, -1.0), (1.0, 1.0))
QUIET = dict(progress=False, run=us.QDRunConfig(reevaluation_episodes=2))
PATIENCE = 300.0  # seconds; ends hangs only
LATE = 103  # a step after the first portion has been told


def make(env=Swing, cluster=None, **others):
    return us.PGAME(env, CONFIG, descriptor=UPRIGHT, cluster=cluster, **others)


def two(patience=PATIENCE, **others):
    return Cluster(2, patience=patience, **others)


def trouble_at(row, episode, what):
    return EpisodeSeeds(0, SIZE)(row, episode), LATE, what


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def held(illumination):
    """All that was learned and stored, but not the slots of replay that nobody will ever see."""
    state = illumination.illuminator.state
    ring = jax.device_get(state.experience)
    lanes = [
        [leaf[lane, :count] for lane, count in enumerate(ring.stored)]
        for leaf in jax.tree.leaves(ring.storage)
    ]
    return bits((state._replace(experience=None), ring.cursor, ring.stored, lanes))


@pytest.fixture(scope="module")
def alone():
    """Three generations in one process."""
    illumination = make()
    illumination.illuminate(3 * SIZE, **QUIET)
    yield illumination
    illumination.close()


@pytest.mark.slow
def test_two_collectors_find_what_one_process_finds(alone, tmp_path):
    """Also when they are left alone after two generations, and another two go on."""
    shared = make(cluster=two())
    shared.illuminate(2 * SIZE, **QUIET)
    shared.save(tmp_path / "kept")
    shared.close()
    loaded = us.PGAME.load(tmp_path / "kept", env=Swing, descriptor=UPRIGHT)
    summary = loaded.illuminate(SIZE, **QUIET)
    assert held(loaded) == held(alone)
    cells = alone.repertoire.filled
    assert bits(loaded.replay(cells[:2])) == bits(alone.replay(cells[:2]))
    assert bits(loaded.play(cells, 2)) == bits(alone.play(cells, 2))
    assert not any(name.startswith("env/") for name in summary.history[0])
    loaded.close()
    # A collector's playhouse is that of the process alone.
    single = us.PGAME.load(tmp_path / "kept", env=Swing, descriptor=UPRIGHT, cluster=Cluster())
    single.illuminate(SIZE, **QUIET)
    assert held(single) == held(alone)
    single.close()


@pytest.mark.slow
@pytest.mark.fault(39, "its episodes of a generation are played again, and no step counts twice")
def test_a_collector_that_is_killed_changes_nothing(alone, tmp_path):
    troubled = make(partial(Swing, tmp_path, trouble_at(3, 1, "die")), two())
    summary = troubled.illuminate(3 * SIZE, **QUIET)
    assert (tmp_path / "die").exists()
    assert held(troubled) == held(alone)
    assert summary.history[0]["env/collector_lost"] == 1
    troubled.close()


@pytest.mark.slow
@pytest.mark.fault(42, "no answer in time: killed and replaced, its late answers are ignored")
def test_a_silent_collector_is_replaced(alone, tmp_path, monkeypatch):
    silent, leaps = tmp_path / "sleep", []

    def clock():
        """Patience passes in a moment, once somebody sleeps."""
        if silent.exists() and not leaps:
            leaps.append(PATIENCE)
        return time.monotonic() + sum(leaps)

    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=clock))
    troubled = make(partial(Swing, tmp_path, trouble_at(0, 2, "sleep")), two())
    troubled.illuminate(3 * SIZE, **QUIET)
    assert held(troubled) == held(alone)
    with pytest.raises(ProcessLookupError):
        os.kill(int(silent.read_text()), 0)
    troubled.close()


@pytest.mark.fault(
    40, "no collector starts within patience: a clear error, and the run can be resumed"
)
def test_collectors_that_cannot_be_had(alone):
    found = make(cluster=two(patience=1.0, cpus_each=3.0))
    with pytest.raises(UnderstudyError, match=r"within 1 s: 2 collectors need 6 cores.* has 4"):
        found.illuminate(SIZE, **QUIET)
    assert found.evaluations == 0
    found.close()


@pytest.mark.slow
def test_an_environment_that_kills_every_process_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(episode_runner, "MAX_ATTEMPTS", 1)
    troubled = make(partial(Swing, tmp_path, trouble_at(0, 0, "die")), two())
    with pytest.raises(UnderstudyError, match=r"collector 0 was lost 1 times .* rows 0 to 2"):
        troubled.illuminate(SIZE, **QUIET)
    troubled.close()


@pytest.mark.slow
def test_an_environments_error_is_raised_as_it_was(tmp_path):
    env = partial(Swing, tmp_path, trouble_at(4, 0, "raise"))
    troubled = make(env, two(), guard=Guard(most_rebuilds=0))
    with pytest.raises(EnvironmentError, match=r"environment 3 of all:.*") as caught:
        troubled.illuminate(SIZE, **QUIET)
    assert "it broke" in str(caught.value) and "environment 1" in str(caught.value)
    troubled.close()


@pytest.mark.parametrize(
    ("env", "cluster", "others", "problem"),
    [
        ("jax:PointNavigation-v0", Cluster(2), {}, "native ones are played on the device"),
        (Swing, Cluster(SIZE + 1), {}, "6 collectors for a generation of 5 policies"),
        (Swing, Cluster(2), {"env_workers": 2}, "leave env_workers at 0"),
        (Swing, Cluster(2, gradient_workers=1), {}, "gradient_workers are for agents"),
    ],
)
def test_what_cannot_be_played_on_a_cluster_is_refused(env, cluster, others, problem):
    with pytest.raises(ConfigError, match=problem):
        make(env, cluster, **others)


def test_what_cannot_travel_is_refused(tmp_path):
    with open(tmp_path / "open", "w") as file:
        found = make(lambda: Swing(file), Cluster(2))
        with pytest.raises(ConfigError, match="cannot be copied to another process"):
            found.illuminate(SIZE, **QUIET)


def test_ray_is_left_alone_until_an_episode_is_played():
    found = make(cluster=Cluster(2, address="nowhere:1"))
    assert len(found.repertoire) == 0
    found.close()
