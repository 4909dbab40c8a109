"""`us.PGAME` and `us.MAPElites` as users meet them: agents by what they do."""

from functools import partial

import gymnasium
import numpy as np
import pytest

import understudy as us
from understudy.envs.native import PointNavigation
from understudy.types import CheckpointError, ConfigError, EnvironmentError

pytestmark = pytest.mark.agents

SMALL = dict(generation_size=8, grid=(5, 5), hidden_sizes=(8,), critic_hidden_sizes=(8,),
             batch_size=16, buffer_size=2_000, critic_steps=4, policy_steps=2)  # fmt: skip
CONFIG = us.PGAMEConfig(**SMALL)
ENV = "jax:PointNavigation-v0"
PLACE = us.Descriptor(lambda env, observation: observation[:1], (-1.0,), (1.0,))


def make(env=ENV, config=CONFIG, **others):
    return us.PGAME(env, config, **others)


@pytest.fixture(scope="module")
def found():
    illumination = make()
    illumination.illuminate(6 * 8, progress=False, run=us.QDRunConfig(reevaluation_episodes=0))
    assert len(illumination.repertoire) > 2
    return illumination


def assert_lives_in(agent, repertoire, cell):
    """The agent does what its cell says."""
    told = agent.evaluate(episodes=2, descriptor="position")
    fitness, descriptor = (np.asarray(x)[cell] for x in (repertoire.cells.fitness,
                                                         repertoire.cells.descriptor))  # fmt: skip
    np.testing.assert_allclose(told["returns"], [fitness] * 2, rtol=1e-6)
    np.testing.assert_allclose(told["descriptors"], [descriptor] * 2, rtol=1e-6)
    np.testing.assert_allclose(told["descriptor"], descriptor, rtol=1e-6)


def test_a_selected_agent_saved_and_loaded_reproduces_its_cell(found, tmp_path):
    repertoire = found.repertoire
    assert len(set(repertoire.fitness.tolist())) > 1
    cell = int(repertoire.filled[np.argmin(repertoire.fitness)])
    agent = repertoire.select(np.asarray(repertoire.cells.descriptor)[cell])
    agent.save(tmp_path / "agent")
    assert_lives_in(us.load(tmp_path / "agent"), repertoire, cell)


def test_the_best_and_any(found):
    repertoire = found.repertoire
    best = int(np.argmax(repertoire.cells.fitness))
    assert_lives_in(repertoire.best, repertoire, best)
    cells = repertoire.filled.tolist()
    known = {repertoire.agent(cell).act(np.array([0.3, 0.1])).tobytes(): cell for cell in cells}
    assert len(known) == len(cells)
    drawn, again = (
        [agent.act(np.array([0.3, 0.1])).tobytes() for agent in repertoire.sample(3, seed=1)]
        for _ in range(2)
    )
    assert set(drawn) <= known.keys() and drawn == again


@pytest.mark.slow
def test_a_selected_agent_can_be_trained_on(found):
    agent = found.repertoire.best
    before = agent.act(np.array([0.3, 0.1]))
    agent.train(1_100, run=us.RunConfig(evaluate_every=0, evaluation_episodes=1), progress=False)
    assert agent.steps == 1_100 and not np.array_equal(agent.act(np.array([0.3, 0.1])), before)
    assert np.isfinite(agent.evaluate(episodes=1)["mean"])


def test_a_repertoire_stays_what_it_was(found):
    """Though the next generation is computed where it lay."""
    other = make()
    quiet = dict(progress=False, run=us.QDRunConfig(reevaluation_episodes=0))
    other.illuminate(6 * 8, **quiet)
    kept = other.repertoire
    fitness, agent = kept.fitness.copy(), kept.best
    action = agent.act(np.array([0.3, 0.1]))
    other.illuminate(1, **quiet)
    assert other.evaluations == 7 * 8
    assert kept.fitness.tobytes() == fitness.tobytes() == found.repertoire.fitness.tobytes()
    assert kept.best.act(np.array([0.3, 0.1])).tobytes() == action.tobytes()


@pytest.mark.slow  # the bits of two programs, which are equal with XLA's optimizations
def test_reevaluation_without_luck_changes_nothing(found):
    judged, again = found.reevaluate(2)
    assert judged.fitness.tobytes() == found.repertoire.fitness.tobytes()
    assert again.fitness.shape == (len(judged), 2)
    replayed = found.replay(found.repertoire.filled[:2])
    assert replayed.fitness[:, 0].tolist() == found.repertoire.fitness[:2].tolist()


@pytest.mark.parametrize("wanted", [(0.5, np.nan), (0.5,), (0.1, 0.2, 0.3), (np.inf, 0.0)])
def test_what_cannot_be_selected(found, wanted):
    with pytest.raises(ConfigError, match=r"a behavior here is 2 finite numbers \(x, y\)"):
        found.repertoire.select(wanted)


def test_cells_that_are_not_filled(found):
    repertoire = found.repertoire
    vacant = next(cell for cell in range(25) if cell not in repertoire.filled)
    for cell in (vacant, -1, 25):
        with pytest.raises(ConfigError, match=f"cell {cell} is not among the {len(repertoire)}"):
            repertoire.agent(cell)
        with pytest.raises(ConfigError, match="not among the"):
            found.replay([int(repertoire.filled[0]), cell])
    with pytest.raises(ConfigError, match="not among the"):
        found.replay([])


def test_an_empty_repertoire_says_so():
    empty = make().repertoire
    assert len(empty) == 0 and empty.metrics["coverage"] == 0
    for ask in (lambda: empty.select((0.5, 0.5)), lambda: empty.best, lambda: empty.sample(2)):
        with pytest.raises(ConfigError, match="empty: illuminate first"):
            ask()
    with pytest.raises(ConfigError, match="empty: illuminate first"):
        make().reevaluate(2)


def test_environments_that_do_not_fit():
    with pytest.raises(EnvironmentError, match=r"(?i)discrete"):
        make("CartPole-v1", descriptor=PLACE)
    with pytest.raises(ConfigError, match=r'"Pendulum-v1" has no descriptors.*Descriptor\(of'):
        make("Pendulum-v1")
    with pytest.raises(ConfigError, match="this environment has no descriptors"):
        make(partial(gymnasium.make, "Pendulum-v1"))
    with pytest.raises(ConfigError, match='no descriptor "feet"; there are: position'):
        make(descriptor="feet")
    with pytest.raises(EnvironmentError, match="PGA-ME needs observations that are vectors"):
        make(Picture, descriptor=PLACE)
    narrow = us.Descriptor(lambda state, _: state.position[:1], (0.0,), (1.0,))
    with pytest.raises(ConfigError, match="the grid 5×5 has 2 axes, but the descriptor 1 numbers"):
        make(descriptor=narrow)


class Picture(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)


def test_settings_that_do_not_fit(found):
    with pytest.raises(ConfigError, match="PGA-ME takes a PGAMEConfig, got a MAPElitesConfig"):
        make(config=us.MAPElitesConfig())
    with pytest.raises(ConfigError, match="MAP-Elites takes a MAPElitesConfig, got a PGAMEConfig"):
        us.MAPElites(ENV, CONFIG)
    with pytest.raises(ConfigError, match="critic_steps 3 must be a multiple of policy_delay 2"):
        us.PGAMEConfig(critic_steps=3)
    with pytest.raises(ConfigError, match="evaluations must be at least 1, got 0"):
        found.illuminate(0)
    with pytest.raises(ConfigError, match="episodes must be at least 1, got 0"):
        found.reevaluate(0)
    with pytest.raises(ConfigError, match=r"episodes must be a whole number, got 1\.5"):
        found.play(found.repertoire.filled[:1], 1.5)


def test_what_is_loaded_must_be_what_was_saved(found, tmp_path):
    place = found.save(tmp_path / "repertoire")
    with pytest.raises(CheckpointError, match="checkpoint of PGA-ME, not of MAP-Elites"):
        us.MAPElites.load(place)
    with pytest.raises(CheckpointError, match=r"us\.PGAME\.load, and select an agent"):
        us.load(place)
    found.repertoire.best.save(tmp_path / "agent")
    with pytest.raises(CheckpointError, match="checkpoint of TD3, not of PGA-ME"):
        us.PGAME.load(tmp_path / "agent")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        us.PGAME.load(tmp_path / "nothing")
    loaded = us.PGAME.load(place)
    assert loaded.evaluations == found.evaluations and loaded.env_name == ENV
    assert repr(loaded) == f"PGA-ME({ENV}, 48 evaluations)"
    assert loaded.repertoire.fitness.tobytes() == found.repertoire.fitness.tobytes()


def test_what_cannot_be_stored_is_handed_in_again(tmp_path):
    env = PointNavigation(max_steps=5)
    own = us.Descriptor(lambda state, observation: state.position, (0.0, 0.0), (1.0, 1.0))
    place = make(env, descriptor=own).save(tmp_path / "own")
    with pytest.raises(CheckpointError, match=r"give load\(…\) its env, descriptor"):
        us.PGAME.load(place)
    with pytest.raises(CheckpointError, match=r"load\(…\) its descriptor"):
        us.PGAME.load(place, env=env)
    assert us.PGAME.load(place, env=env, descriptor=own).descriptor is own
    with pytest.raises(CheckpointError, match="made on another environment"):
        us.PGAME.load(place, env="Pendulum-v1", descriptor=own)
