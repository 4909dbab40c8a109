"""Feet on the floor and where the torso is, of Gymnasium's MuJoCo walkers."""

import gc
from functools import partial

import gymnasium
import mujoco
import numpy as np
import pytest

from understudy.envs import EpisodeSeeds, SerialEnvs, descriptors, resolve
from understudy.envs.descriptors import descriptors_of, find_descriptor
from understudy.envs.gymnasium_envs import make_quietly
from understudy.errors import EnvironmentError

pytestmark = pytest.mark.mujoco
# Number of feet, of dimensions to walk in, and where in qpos the height is.
KINDS = {"HalfCheetah": (2, 1, 1), "Walker2d": (2, 1, 1), "Hopper": (1, 1, 1), "Ant": (4, 2, 2)}
NAMES = [f"{kind}-{version}" for kind in KINDS for version in ("v4", "v5")]
NEAR = 0.02  # metres from the floor within which margins decide


@pytest.fixture
def make():
    made = []

    def build(name):
        made.append(make_quietly(gymnasium.spec(name)))
        made[-1].reset(seed=0)
        return made[-1]

    yield build
    for env in made:
        env.close()


def pose(env, qpos):
    data = env.unwrapped.data
    data.qpos[:] = qpos
    mujoco.mj_forward(env.unwrapped.model, data)


def clearance(env, geom):
    """Of a capsule's lowest point above the floor, worked out from where the capsule is."""
    model, data = env.unwrapped.model, env.unwrapped.data
    place = model.geom(geom).id
    radius, half = model.geom_size[place, :2]
    upright = abs(data.geom_xmat[place].reshape(3, 3)[2, 2])  # the capsule's own axis is its z
    return data.geom_xpos[place, 2] - half * upright - radius


@pytest.mark.parametrize("name", NAMES)
def test_a_foot_counts_when_it_is_as_low_as_the_floor_and_nothing_else_does(make, name):
    env, feet = make(name), descriptors_of(name)["feet"]
    height = KINDS[name[:-3]][2]
    draw = np.random.default_rng(0)
    seen, others_only = set(), 0
    for _ in range(300):
        qpos = draw.uniform(-2.0, 2.0, env.unwrapped.model.nq)
        qpos[height] = env.unwrapped.init_qpos[height] + draw.uniform(-1.2, 0.2)
        pose(env, qpos)
        heights = np.array([clearance(env, geom) for geom in feet.of.feet])
        if (np.abs(heights) < NEAR).any():
            continue
        touches = feet.of(env, None)
        assert touches.tolist() == (heights < 0).tolist()
        seen.add(tuple(touches.tolist()))
        others_only += not touches.any() and env.unwrapped.data.ncon > 0
    alone = {tuple(row) for row in np.eye(feet.size, dtype=bool).tolist()}
    assert alone <= seen  # feet are told apart
    assert others_only > 0


@pytest.mark.parametrize("name", NAMES)
def test_dropped_it_ends_on_its_feet(make, name):
    env, (size, _, height) = make(name), KINDS[name[:-3]]
    feet = descriptors_of(name)["feet"]
    qpos = env.unwrapped.init_qpos.copy()
    qpos[height] += 0.5
    env.unwrapped.set_state(qpos, env.unwrapped.init_qvel)
    still = np.zeros(env.action_space.shape, np.float32)
    assert not feet.of(env, env.step(still)[0]).any()
    landed = np.zeros(size, bool)
    for _ in range(60):
        landed |= feet.of(env, env.step(still)[0])
    assert landed.all()


@pytest.mark.parametrize("name", NAMES)
def test_position_is_the_torsos(make, name):
    env, axes = make(name), KINDS[name[:-3]][1]
    position = descriptors_of(name)["position"]
    qpos = env.unwrapped.init_qpos.copy()
    qpos[:axes] = (7.0, -3.0)[:axes]
    pose(env, qpos)
    told = position.of(env, None)
    assert told.tolist() == [7.0, -3.0][:axes]
    assert told.tolist() == env.unwrapped.data.body("torso").xpos[:axes].tolist()
    pose(env, env.unwrapped.init_qpos)
    assert told.tolist() == [7.0, -3.0][:axes]  # no view of the simulator


@pytest.mark.parametrize("name", NAMES)
def test_what_they_are(name):
    size, axes, _ = KINDS[name[:-3]]
    found = descriptors_of(name)
    assert list(found) == ["feet", "position"]
    feet, position = found.values()
    assert (feet.size, feet.over, feet.low, feet.high) == (
        size,
        "mean",
        (0.0,) * size,
        (1.0,) * size,
    )
    assert (position.size, position.over) == (axes, "last")
    assert position.low == tuple(-bound for bound in position.high)
    for descriptor in (feet, position):
        assert len(set(descriptor.names)) == descriptor.size


@pytest.mark.parametrize(
    "name", [None, "", "Ant", "Ant-v3", "Pendulum-v1", "Humanoid-v5", "x-Ant-v5"]
)
def test_other_environments_have_none(name):
    assert descriptors_of(name) == {}


@pytest.mark.processes
def test_through_an_id_and_with_workers():
    source, seeds = resolve("Walker2d-v5"), EpisodeSeeds(0, 3)
    descriptor = find_descriptor(source.descriptors, "uni", source.name)
    assert descriptor.names == ("right foot", "left foot")
    told = []
    for workers in (0, 2):
        envs, draw = (
            source.make_host(3, seeds, workers, descriptor=descriptor),
            np.random.default_rng(0),
        )
        envs.reset()
        actions = draw.uniform(-1, 1, (40, 3, 6)).astype(np.float32)
        told.append(np.stack([envs.step(action).descriptor for action in actions]))
        envs.close()
    assert told[0].tobytes() == told[1].tobytes()
    assert set(np.unique(told[0])) == {0.0, 1.0}


def test_another_robot_says_which_geom_is_missing():
    feet = descriptors_of("Walker2d-v5")["feet"]
    factory = partial(make_quietly, gymnasium.spec("HalfCheetah-v5"))
    envs = SerialEnvs([factory], EpisodeSeeds(0), descriptor=feet)
    envs.reset()
    with pytest.raises(EnvironmentError, match=r"environment 0: the descriptor .*foot_geom"):
        envs.step(np.zeros((1, 6), np.float32))
    envs.close()


def test_geoms_are_looked_up_once_and_forgotten_with_the_environment():
    env, feet = make_quietly(gymnasium.spec("Hopper-v5")), descriptors_of("Hopper-v5")["feet"]
    env.reset(seed=0)
    feet.of(env, None)
    table = descriptors.contact_tables[env.unwrapped][feet.of.feet]
    feet.of(env, None)
    assert descriptors.contact_tables[env.unwrapped][feet.of.feet] is table
    known = len(descriptors.contact_tables)
    env.close()
    del env
    gc.collect()
    assert len(descriptors.contact_tables) < known
