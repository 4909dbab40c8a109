"""Illumination of native environments: it grows, it repeats itself, it can be played again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.envs.walking import LENGTH
from tests.envs.walking_native import NativeWalk, place
from tests.qd.qd_cases import SIZE, bits, plan
from understudy.envs.native import PointNavigation
from understudy.qd import repertoire as qd
from understudy.qd.illuminators import NativeIlluminator, Reevaluation

pytestmark = pytest.mark.agents

POINT = PointNavigation(max_steps=10, step_size=0.1)


def on_point(guided=False, **settings):
    descriptor = POINT.descriptors["position"]
    return NativeIlluminator(plan(guided, POINT.spec, descriptor, **settings), POINT)


def on_walk(guided=True, spread=0.5, **settings):
    return NativeIlluminator(plan(guided, **settings), NativeWalk(spread))


@pytest.fixture(scope="module")
def history():
    """MAP-Elites on PointNavigation: the illuminator, and its state after each generation."""
    illuminator, states = on_point(), []
    for _ in range(20):
        illuminator.advance(1)
        states.append(jax.tree.map(lambda x: jnp.asarray(np.array(x)), illuminator.state))
    return illuminator, states


@pytest.fixture(scope="module")
def walked():
    """PGA-MAP-Elites on walks that begin anywhere."""
    illuminator = on_walk()
    illuminator.advance(5)
    return illuminator


def cells_of(state):
    return np.flatnonzero(state.repertoire.filled)


def corrected_by(again, repertoire, cells):
    """In one program."""
    return jax.jit(lambda repertoire: qd.corrected(repertoire, cells, *again))(repertoire)


def found(again, repertoire, cells):
    """Whether each episode is what its cell says."""
    fitness, descriptor = (
        np.asarray(x)[cells] for x in (repertoire.fitness, repertoire.descriptor)
    )
    assert (again.fitness == fitness[:, None]).all()
    assert (again.descriptor == descriptor[:, None]).all()


def test_a_repertoire_grows(history):
    _, states = history
    fitness = np.stack([state.repertoire.fitness for state in states])
    assert (np.diff(np.where(np.isfinite(fitness), fitness, -1e9), axis=0) >= 0).all()
    metrics = jax.jit(qd.metrics)
    told = [metrics(state.repertoire, state.offset) for state in states]
    for name in ("qd_score", "coverage", "max_fitness"):
        values = [float(one[name]) for one in told]
        assert values == sorted(values) and values[-1] > values[0], name
    assert told[-1]["coverage"] >= 2 * told[0]["coverage"]


def test_what_is_counted(history):
    _, states = history
    first, last = states[0], states[-1]
    assert int(last.generation) == len(states)
    assert int(last.counts.steps) == len(states) * SIZE * POINT.max_steps
    assert int(last.counts.not_finite) == 0 and int(last.counts.clipped) == 0
    assert int(first.counts.inserted) == len(cells_of(first))  # all of them into empty cells
    assert int(last.counts.inserted) > len(cells_of(last))
    born = np.asarray(last.repertoire.born)[cells_of(last)]
    assert len(set(born)) == len(born) and born.max() < len(states) * SIZE


def test_the_offset_is_the_lowest_fitness_of_the_first_generation(history):
    _, states = history
    assert len({float(state.offset) for state in states}) == 1
    lowest = np.asarray(states[0].repertoire.fitness)[cells_of(states[0])].min()
    assert float(states[0].offset) <= lowest  # it may not have won its cell
    illuminator = on_point(score_offset=-7.5)
    illuminator.advance(1)
    assert float(illuminator.state.offset) == -7.5


def test_replay_of_a_repertoire_gives_every_cell_again(history, walked):
    for illuminator in (history[0], walked):
        cells = cells_of(illuminator.state)
        assert len(cells) > SIZE or illuminator is walked, "more than one program's worth"
        found(illuminator.replay(cells), illuminator.state.repertoire, cells)
        found(illuminator.replay(cells[:1]), illuminator.state.repertoire, cells[:1])


def test_where_nothing_is_left_to_chance_reevaluation_finds_the_same(history):
    illuminator, _ = history
    cells = cells_of(illuminator.state)
    again = illuminator.reevaluate(cells, 3)
    assert again.fitness.shape == (len(cells), 3)
    found(again, illuminator.state.repertoire, cells)
    same = corrected_by(again, illuminator.state.repertoire, cells)
    assert (same.born == illuminator.state.repertoire.born).all()


def test_reevaluation_meets_other_episodes(walked):
    cells = cells_of(walked.state)
    again = walked.reevaluate(cells, 4)
    fitness = np.asarray(walked.state.repertoire.fitness)[cells]
    everything = np.concatenate([fitness[:, None], again.fitness], axis=1)
    assert all(len(set(row)) == 5 for row in everything.tolist())
    repeated = walked.reevaluate(cells, 4)
    assert repeated.fitness.tobytes() == again.fitness.tobytes()


def test_the_split_into_calls_does_not_matter(walked):
    other = on_walk()
    for part in (2, 0, 3):
        other.advance(part)
    assert bits(other.state) == bits(walked.state)


@pytest.mark.slow
def test_another_seed_is_another_run(walked):
    other = on_walk(seed=1)
    other.advance(5)
    for name in ("policies", "fitness", "descriptor"):
        ours, theirs = (getattr(each.state.repertoire, name) for each in (walked, other))
        assert bits(ours) != bits(theirs)
    assert bits(other.state.emitter) != bits(walked.state.emitter)


def test_replay_holds_the_steps_of_all_evaluations(walked):
    state = walked.state
    stored = np.asarray(state.experience.stored)
    assert stored.sum() == int(state.counts.steps)
    assert (stored >= 5).all() and (stored <= 5 * LENGTH).all()
    ends = np.asarray(state.experience.storage.last)
    assert [int(lane[:count].sum()) for lane, count in zip(ends, stored, strict=True)] == [5] * SIZE
    assert int(state.emitter[1].state.updates) == 5 * walked.plan.config.critic_steps


@pytest.mark.parametrize(("starts", "places"), [("random", 2 * SIZE), ("fixed", 1)])
def test_where_episodes_begin(walked, starts, places):
    chosen = plan(False, starts=starts)
    keys = [chosen.start_keys(walked.state, chosen.born(jnp.int32(n))) for n in (0, 1)]
    assert len({tuple(key) for key in np.concatenate(keys).tolist()}) == places


def test_policies_that_move_to_another_cell():
    """By hand: in cells 0 to 4 of a row of five, judged anew over two episodes."""
    cells = plan(grid=(5, 1)).cells()
    template = {"weight": jnp.zeros(1)}
    centers = np.asarray(cells.centers)
    policies = {"weight": jnp.arange(5.0)[:, None]}
    born = jnp.arange(5, dtype=jnp.int32)
    empty, fitness = jax.jit(qd.empty)(cells, template), jnp.full(5, 9.0)
    before = jax.jit(qd.add)(empty, policies, fitness, cells.centers, born)[0]
    assert len(np.flatnonzero(before.filled)) == 5
    means = np.array([1.0, 2.0, 3.0, 4.0, np.nan])
    fitness = np.stack([means - 0.5, means + 0.5], axis=1)
    to = centers[[0, 3, 4, 3, 1]]  # 1 and 3 meet in cell 3; 4 is lost for its NaN
    aside = np.array([0.1, 0.0])
    again = Reevaluation(fitness, np.stack([to - aside, to + aside], axis=1))
    after = corrected_by(again, before, np.arange(5))
    assert np.flatnonzero(after.filled).tolist() == [0, 3, 4]
    assert np.asarray(after.fitness)[[0, 3, 4]].tolist() == [1.0, 4.0, 3.0]
    assert np.asarray(after.policies["weight"])[[0, 3, 4], 0].tolist() == [0.0, 3.0, 2.0]
    np.testing.assert_allclose(after.descriptor[3], centers[3], rtol=1e-6)
    assert after.born.tolist() == [0, -1, -1, 3, 2]


def test_short_episodes_that_leave_the_bounds():
    narrow = place(low=(-0.01, -0.01), high=(0.01, 0.01))
    settings = plan(False, descriptor=narrow, episode_length=2)
    illuminator = NativeIlluminator(settings, NativeWalk(0.5))
    illuminator.advance(3)
    assert 3 * SIZE <= int(illuminator.state.counts.steps) <= 3 * 2 * SIZE
    outside = np.abs(np.asarray(illuminator.state.repertoire.descriptor)) > 0.01
    assert outside[cells_of(illuminator.state)].any()
    assert 0 < int(illuminator.state.counts.clipped) <= 3 * SIZE
