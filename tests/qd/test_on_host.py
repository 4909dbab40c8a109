"""Illumination of Gymnasium environments: as on the device, in one process or in several."""

from functools import partial

import jax
import numpy as np
import pytest

from tests.envs.walking import LENGTH, Walk, place
from tests.envs.walking_native import NativeWalk
from tests.envs.walking_native import place as native_place
from tests.qd.qd_cases import SIZE, bits, plan
from understudy.envs.fault_guard import Guard
from understudy.envs.make import resolve
from understudy.envs.seeds import EpisodeSeeds
from understudy.qd import illuminators
from understudy.qd.illuminators import HostIlluminator, NativeIlluminator
from understudy.training.episode_runner import HostEpisodeRunner
from understudy.types import EnvironmentError

pytestmark = pytest.mark.agents

GENERATIONS = 3


def on_host_walk(guided=True, spread=0.5, workers=0, trouble=None, guard=None, **settings):
    source = resolve(partial(Walk, spread, trouble))
    descriptor = place(settings.pop("over", "last"))
    chosen = plan(guided, source.spec, descriptor, **settings)
    runner = HostEpisodeRunner(chosen.episode_plan, source, workers, guard or Guard())
    return HostIlluminator(chosen, runner)


@pytest.fixture(scope="module")
def walked():
    illuminator = on_host_walk()
    illuminator.advance(GENERATIONS)
    yield illuminator
    illuminator.close()


def cells_of(illuminator):
    return np.flatnonzero(illuminator.state.repertoire.filled)


@pytest.mark.processes
def test_workers_change_nothing(walked):
    other = on_host_walk(workers=2)
    other.advance(1)
    other.advance(GENERATIONS - 1)
    assert bits(other.state) == bits(walked.state)
    cells = cells_of(walked)
    for ask in (lambda each: each.replay(cells), lambda each: each.reevaluate(cells, 2)):
        assert bits(ask(other)) == bits(ask(walked))
    other.close()


def test_the_same_as_on_native_environments():
    """Where episodes begin alike, the first generations are the same."""
    here = on_host_walk(guided=False, spread=0.0, over="mean")
    there = NativeIlluminator(plan(False, descriptor=native_place("mean")), NativeWalk())
    for each in (here, there):
        each.advance(2)
    ours, theirs = (each.state.repertoire for each in (here, there))
    assert ours.born.tolist() == theirs.born.tolist() and (ours.born >= SIZE).any()
    for name in ("fitness", "descriptor"):
        one, other = getattr(ours, name), getattr(theirs, name)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert int(here.state.counts.steps) == int(there.state.counts.steps)


def test_replay_holds_the_steps_of_all_evaluations(walked, monkeypatch):
    state = walked.state
    stored = np.asarray(state.experience.stored)
    assert stored.sum() == int(state.counts.steps)
    assert len(set(stored.tolist())) > 1, "some walks must end early"
    ends = np.asarray(state.experience.storage.last)
    counted = [int(lane[:count].sum()) for lane, count in zip(ends, stored, strict=True)]
    assert counted == [GENERATIONS] * SIZE
    # In however large portions they come.
    monkeypatch.setattr(illuminators, "STEPS_AT_ONCE", LENGTH - 2)
    other = on_host_walk()
    other.advance(GENERATIONS)
    inside = [
        [np.asarray(leaf)[lane, :count] for lane, count in enumerate(stored)]
        for each in (walked, other)
        for leaf in jax.tree.leaves(each.state.experience.storage)
    ]
    half = len(inside) // 2
    assert bits(inside[:half]) == bits(inside[half:])
    assert bits(other.state.repertoire) == bits(state.repertoire)


def test_replay_gives_every_cell_again(walked):
    cells = cells_of(walked)
    again, repertoire = walked.replay(cells), walked.state.repertoire
    assert (again.fitness[:, 0] == np.asarray(repertoire.fitness)[cells]).all()
    assert (again.descriptor[:, 0] == np.asarray(repertoire.descriptor)[cells]).all()


@pytest.mark.slow
def test_playing_again_leaves_the_run_alone(walked):
    other = on_host_walk()
    other.advance(1)
    other.replay(cells_of(other)[:2])
    other.reevaluate(cells_of(other), 2)
    other.advance(GENERATIONS - 1)
    assert bits(other.state) == bits(walked.state)


def test_reevaluation_meets_other_episodes(walked):
    cells = cells_of(walked)
    again = walked.reevaluate(cells, 3)
    fitness = np.asarray(walked.state.repertoire.fitness)[cells]
    everything = np.concatenate([fitness[:, None], again.fitness], axis=1)
    assert all(len(set(row)) == 4 for row in everything.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("starts", ["random", "fixed"])
def test_where_episodes_begin(starts):
    illuminator = on_host_walk(starts=starts, gradient_share=0.2, policy_steps=0)
    illuminator.advance(2)
    kept = jax.device_get(illuminator.state.experience)
    firsts = set()
    for lane in range(SIZE):
        second = int(np.flatnonzero(kept.storage.last[lane])[0]) + 1
        firsts |= {tuple(kept.storage.observation[lane, at].tolist()) for at in (0, second)}
    assert len(firsts) == (1 if starts == "fixed" else 2 * SIZE)


def test_an_error_leaves_a_state_to_save():
    """Replay, which the environments' steps flow into, comes back from a generation that fails."""
    seeds = EpisodeSeeds(0, SIZE)
    trouble = {seeds(0, 1): (1, "raise")}
    illuminator = on_host_walk(trouble=trouble, guard=Guard(most_rebuilds=0))
    illuminator.advance(1)
    before = jax.tree.map(np.asarray, illuminator.state)
    with pytest.raises(EnvironmentError, match=r"it stumbled"):
        illuminator.advance(2)
    after = illuminator.state
    assert after.experience is not None and int(after.generation) == 1
    assert bits(after.repertoire) == bits(before.repertoire)
    assert (np.asarray(after.experience.stored) >= before.experience.stored).all()
