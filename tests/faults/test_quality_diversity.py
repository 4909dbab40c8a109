"""Illumination goes on when policies, environments or workers fail, and keeps no part of that."""

from functools import partial

import jax
import numpy as np
import pytest

import understudy as us
from tests.envs.walking import Walk
from tests.envs.walking import place as host_place
from tests.envs.walking_native import NativeWalk, place
from tests.qd.qd_cases import SIZE, bits, config, plan
from understudy.envs.fault_guard import Guard
from understudy.envs.make import resolve
from understudy.envs.seeds import EpisodeSeeds
from understudy.qd.illuminators import HostIlluminator, NativeIlluminator
from understudy.qd.run import Position
from understudy.qd.snapshot import capture, restore
from understudy.runs import checkpoint
from understudy.state_dict import state_dict
from understudy.training.episode_runner import HostEpisodeRunner
from understudy.types import CheckpointError

pytestmark = pytest.mark.agents

GENERATIONS = 3
SEEDS = EpisodeSeeds(0, SIZE)
QUIET = dict(progress=False, run=us.QDRunConfig(log_every=1, reevaluation_episodes=2))


def assert_finite(state):
    """All that was kept: elites, the steps that can be drawn, and TD3."""
    repertoire, experience = state.repertoire, state.experience
    cells, stored = np.flatnonzero(repertoire.filled), np.asarray(experience.stored)
    parts = repertoire.policies, repertoire.fitness, repertoire.descriptor
    elites = jax.tree.map(lambda x: np.asarray(x)[cells], parts)
    lanes = jax.tree.map(
        lambda x: [np.asarray(x)[lane, :count] for lane, count in enumerate(stored)],
        experience.storage,
    )
    for name, leaf in state_dict((elites, lanes, state.emitter)).items():
        assert leaf.dtype.kind != "f" or np.isfinite(leaf).all(), name


@pytest.fixture(scope="module")
def troubled():
    """To the left of the middle the environment gives NaN: about half of the policies go there.
    Most of the others leave the bounds."""
    env, narrow = NativeWalk(0.3, stumbles_at=-0.3), place(low=(0.0, 0.0), high=(0.1, 0.1))
    found = us.PGAME(env, config(True), descriptor=narrow)
    return found, found.illuminate(GENERATIONS * SIZE, **QUIET).history


def told(history, name):
    return [row[name] for row in history if name in row]


@pytest.mark.fault(46, "an environment that gives NaN: counted, not inserted, not learned from")
def test_an_environment_that_gives_nan(troubled):
    found, history = troubled
    counted = told(history, "qd/not_finite")
    assert 0 < counted[0] <= counted[-1] < GENERATIONS * SIZE
    assert 0 < len(found.repertoire) <= GENERATIONS * SIZE - counted[-1]
    assert_finite(found.illuminator.state)
    assert not told(history, "train/discarded_updates")
    assert np.isfinite(told(history, "qd/corrected_qd_score")).all()


@pytest.mark.fault(47, "logged as qd/clipped")
def test_behaviors_out_of_bounds_are_logged(troubled):
    found, history = troubled
    counted, wrong = told(history, "qd/clipped"), told(history, "qd/not_finite")
    assert counted == sorted(counted) and 0 < counted[-1] <= GENERATIONS * SIZE - wrong[-1]
    assert (found.repertoire.descriptors > 0.1).any(), "kept as measured"


def break_the_greedy_actor(illuminator):
    state = illuminator.state
    learner = state.emitter[1]
    broken = jax.tree.map(lambda x: x * np.float32("nan"), learner.state.params.actor)
    params = learner.state.params._replace(actor=broken)
    learner = learner._replace(state=learner.state._replace(params=params))
    illuminator.state = state._replace(emitter=(state.emitter[0], learner))


@pytest.mark.slow
@pytest.mark.fault(46, "a policy that gives NaN: the same; other policies are not affected")
def test_a_policy_that_gives_nan():
    illuminator = on_host({})
    illuminator.advance(1)
    break_the_greedy_actor(illuminator)
    illuminator.advance(1)
    assert int(illuminator.state.counts.not_finite) == 1 and int(illuminator.state.generation) == 2
    assert (np.asarray(illuminator.state.experience.stored)[:-1] > 1).all()
    assert_finite(illuminator.state._replace(emitter=()))
    illuminator.close()


@pytest.mark.fault(46, "on native environments, too")
def test_a_native_policy_that_gives_nan(troubled):
    illuminator = troubled[0].illuminator
    break_the_greedy_actor(illuminator)
    steps = int(illuminator.state.experience.stored[-1])
    illuminator.advance(1)
    assert 1 <= int(illuminator.state.counts.not_finite) < SIZE
    assert int(illuminator.state.experience.stored[-1]) == steps  # the greedy actor's lane
    assert_finite(illuminator.state._replace(emitter=()))


def on_host(trouble, workers=0, **guard):
    source = resolve(partial(Walk, 0.3, trouble))
    chosen = plan(True, source.spec, host_place())
    runner = HostEpisodeRunner(chosen.episode_plan, source, workers, Guard(**guard))
    return HostIlluminator(chosen, runner)


@pytest.fixture(scope="module")
def untroubled():
    illuminator = on_host({})
    states = []
    for _ in range(GENERATIONS):
        illuminator.advance(1)
        states.append(jax.tree.map(np.asarray, illuminator.state.repertoire))
    illuminator.close()
    return states


@pytest.mark.processes
@pytest.mark.fault(
    48, "a worker killed in an evaluation is replaced, its policies are evaluated again"
)
def test_a_worker_that_dies_in_an_evaluation(untroubled):
    illuminator = on_host({SEEDS(1, 1): (1, "killed")}, workers=2)
    illuminator.advance(1)
    assert bits(illuminator.state.repertoire) == bits(untroubled[0])
    illuminator.advance(1)
    assert illuminator.faults["worker_restarts"] == 1
    assert int(illuminator.state.counts.not_finite) == 0
    # The other worker's half of the generation is what it would have been.
    ours = illuminator.state.repertoire
    born, theirs = np.asarray(ours.born), untroubled[1].born
    rows = (theirs - SIZE >= SIZE // 2) & (born == theirs)
    assert (np.asarray(ours.fitness)[rows] == untroubled[1].fitness[rows]).all()
    illuminator.advance(1)
    assert int(illuminator.state.generation) == GENERATIONS
    illuminator.close()


@pytest.mark.fault(48, "an evaluation that fails three times is skipped and counted")
@pytest.mark.parametrize("failures", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_an_evaluation_that_keeps_failing(untroubled, failures):
    """The environment of row 2 falls over in its first episodes, whatever is done there."""
    trouble = {SEEDS(2, episode): (1, "raise") for episode in range(failures)}
    illuminator = on_host(trouble, most_rebuilds=9)
    illuminator.advance(1)
    assert int(illuminator.state.counts.not_finite) == failures // 3
    assert illuminator.faults["rebuilds"] == failures
    ours, wanted = illuminator.state.repertoire, untroubled[0]
    others = (wanted.born >= 0) & (wanted.born != 2) & (np.asarray(ours.born) == wanted.born)
    assert others.any()
    assert (np.asarray(ours.fitness)[others] == wanted.fitness[others]).all()
    assert (2 in np.asarray(ours.born)) == (failures == 2) or 2 not in wanted.born
    illuminator.close()


@pytest.mark.fault(49, "no generation lowers a cell")
def test_no_generation_lowers_a_cell(untroubled):
    fitness = np.stack([each.fitness for each in untroubled])
    assert (fitness[1:] >= fitness[:-1]).all() and (fitness[-1] > fitness[0]).any()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    begun = NativeIlluminator(plan(True), NativeWalk(0.3))
    place_of_it = tmp_path_factory.mktemp("kept") / "run"
    return checkpoint.read(checkpoint.write(place_of_it, *capture(begun, Position())))


@pytest.mark.fault(50, "a run of another grid or genotype: an error names the differences")
@pytest.mark.parametrize(
    ("other", "line"),
    [
        (dict(grid=(6, 5)), "a grid of 5×5 cells .* not a grid of 6×5 cells"),
        (dict(grid=None, cells=25), "a grid of 5×5 cells .* not a CVT of 25 cells"),
        (dict(descriptor=place(low=(-3.0, -2.0))), r"\[-2, 2\] .* not .* \[-3, 2\]"),
        (dict(hidden_sizes=(9,)), r"policies\.\S* is float32\[.*8\], not float32\[.*9\]"),
        (dict(critic_hidden_sizes=(9,)), "critic"),
    ],
)
def test_a_run_of_something_else_is_refused(kept, other, line):
    stranger = NativeIlluminator(plan(True, **other), NativeWalk(0.3))
    before = bits(stranger.state)
    with pytest.raises(CheckpointError, match=line) as error:
        restore(stranger, kept)
    assert "\n" not in str(error.value)
    assert bits(stranger.state) == before


@pytest.mark.slow
@pytest.mark.fault(50, "a user's own descriptor that differs from the stored one is refused")
def test_another_descriptor_for_a_stored_repertoire(tmp_path):
    kept = us.PGAME(NativeWalk(), config(True), descriptor=place()).save(tmp_path / "run")
    with pytest.raises(CheckpointError, match="holds a grid of 5×5 cells"):
        us.PGAME.load(kept, env=NativeWalk(), descriptor=place(high=(3.0, 2.0)))
    with pytest.raises(CheckpointError, match='over "last", not "mean"'):
        us.PGAME.load(kept, env=NativeWalk(), descriptor=place("mean"))
