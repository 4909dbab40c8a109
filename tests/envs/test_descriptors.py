"""Descriptors that travel with every step of Gymnasium environments, and rows stepped alone."""

import multiprocessing
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.envs.scripted import SCRIPT, Faulty, Scripted, actions_for, reward_of
from tests.envs.sensing import Sensing
from understudy.envs import EpisodeSeeds, Guard, ProcessEnvs, SerialEnvs, UserVectorEnvs, resolve
from understudy.envs.descriptors import Descriptor, find_descriptor
from understudy.envs.fault_guard import DEFAULT_GUARD
from understudy.errors import ConfigError, EnvironmentError

ROWS, STEPS = 3, 12
SEEDS = EpisodeSeeds(3, ROWS)
ZERO = np.zeros((ROWS, 2), np.float32)
KINDS = ("serial", "processes")
WITH_PROCESSES = pytest.param("processes", marks=pytest.mark.processes)


def episode_and_time(env, observation):
    """Of the environment itself and of what it shows: both are there, and are of one moment."""
    return env.unwrapped.episode, observation[2] / 2


PLACE = Descriptor(episode_and_time, (0.0, 0.0), (9.0, 2.0))


def describe(of):
    return Descriptor(of, (0.0, 0.0), (1.0, 1.0))


@pytest.fixture
def build():
    made = []

    def build(kind, factories, descriptor=None, guard=DEFAULT_GUARD):
        if kind == "serial":
            made.append(SerialEnvs(factories, SEEDS, guard=guard, descriptor=descriptor))
        else:
            made.append(ProcessEnvs(factories, SEEDS, 2, guard, descriptor))
        return made[-1]

    yield build
    for envs in made:
        envs.close()
    assert not multiprocessing.active_children()


@pytest.fixture(params=["serial", WITH_PROCESSES])
def make(build, request):
    return partial(build, request.param)


def scripted(**row_1):
    return [Scripted, partial(Faulty, **row_1) if row_1 else Scripted, Scripted]


def test_it_describes_the_step_before_any_reset(make):
    envs = make(scripted(), PLACE)
    envs.reset()
    steps = [envs.step(ZERO) for _ in range(STEPS)]
    places = [(episode, (time + 1) / 2) for episode, (length, _) in enumerate(SCRIPT * 2)
              for time in range(length)]  # fmt: skip
    for step, place in zip(
        steps, places, strict=False
    ):  # looked at when all are done: fresh arrays
        assert step.descriptor.dtype == np.float32
        assert step.descriptor.tolist() == [list(place)] * ROWS
    assert any(step.last.any() for step in steps)


@pytest.mark.slow
@pytest.mark.processes
def test_serial_and_processes_give_the_same_bits(build):
    """With failures, a dropped episode, and another choice of rows in every step."""
    factories = [Scripted, partial(Faulty, "raise", 1), partial(Faulty, "observation", 2)]
    results = []
    for kind in KINDS:
        envs = build(kind, factories, PLACE, Guard(most_rebuilds=99, non_finite="drop"))
        first, draw = envs.reset(), np.random.default_rng(0)
        masks = [None if step % 3 == 0 else draw.random(ROWS) < 0.6 for step in range(2 * STEPS)]
        steps = [
            envs.step(*given) for given in zip(actions_for(2 * STEPS, ROWS), masks, strict=True)
        ]
        results.append((first.tobytes(), steps, envs.episodes.tolist(), dict(envs.faults)))
    (first, steps, *rest), (other_first, other_steps, *other_rest) = results
    assert first == other_first and rest == other_rest
    assert rest[1]["rebuilds"] > 0 and rest[1]["dropped_episodes"] > 0
    for step, other in zip(steps, other_steps, strict=True):
        for left, right in zip(step, other, strict=True):
            assert left.dtype == right.dtype and left.tobytes() == right.tobytes()


def test_without_one_nothing_is_described(make):
    envs = make(scripted())
    envs.reset()
    assert envs.step(ZERO).descriptor is None


def test_dicts_are_shown_as_they_are(make):
    def joints(env, observation):
        return observation["body"]["joints"][1], observation["clock"]

    envs = make([Sensing] * ROWS, describe(joints))
    envs.reset()
    step = envs.step(np.zeros((ROWS, 2), np.int64))
    assert step.descriptor.tolist() == [[1.5, 1.0]] * ROWS


def test_only_the_marked_rows_are_stepped(make):
    envs = make(scripted(), PLACE)
    envs.reset()
    before = envs.step(ZERO)  # ends everyone's first episode
    only = np.array([False, True, False])
    action = np.full((ROWS, 2), np.nan, np.float32)  # of rows that are left, nobody looks at it
    action[1] = 0.5
    step = envs.step(action, only)
    assert step.valid.tolist() == only.tolist() and step.valid is not only
    assert step.reward[~only].tolist() == [0, 0] and step.reward[1] == reward_of([0.0, 5.375])
    assert not step.terminated.any() and not step.last.any()
    for seen in (step.next_observation, step.observation):
        assert seen[~only].tobytes() == before.observation[~only].tobytes()
        assert seen[1].tolist() == [0, 1, 1, SEEDS(1, 1) % 997]
    assert np.isnan(step.descriptor[~only]).all()
    assert step.descriptor[1].tolist() == [1, 0.5]

    for _ in range(2):  # to the end of the second episode
        step = envs.step(ZERO, only)
    assert step.last.tolist() == only.tolist()
    assert envs.episodes.tolist() == [1, 2, 1]
    assert step.observation[:, 1:3].tolist() == [[1, 0], [2, 0], [1, 0]]
    everyone = envs.step(ZERO)
    assert everyone.valid.all()
    assert everyone.next_observation[:, 1:3].tolist() == [[1, 1], [2, 1], [1, 1]]


def test_nothing_may_be_marked(make):
    envs = make(scripted())
    seen = envs.reset()
    step = envs.step(ZERO, np.zeros(ROWS, bool))
    assert not step.valid.any() and not step.last.any()
    assert step.observation.tobytes() == seen.tobytes()


def test_a_row_that_was_left_still_knows_its_time(make):
    envs = make(scripted(fault="reward"))
    envs.reset()
    envs.step(ZERO)
    others = np.array([True, False, True])
    for _ in range(4):
        envs.step(ZERO, others)
    envs.step(ZERO)
    with pytest.raises(EnvironmentError, match=r"environment 1: the reward is inf \(step 2 of"):
        envs.step(ZERO)


@pytest.mark.slow
@pytest.mark.processes
def test_a_lost_worker_cuts_the_rows_that_were_left_too(build):
    envs = build(
        "processes", scripted(), PLACE
    )  # row 0 is the first worker's, 1 and 2 the second's
    before = envs.reset()
    doomed = envs.pool.processes[1]
    doomed.kill()
    doomed.join()
    step = envs.step(ZERO, np.array([True, True, False]))
    assert step.valid.tolist() == [True, False, False] and step.last.all()
    assert step.next_observation[1:].tobytes() == before[1:].tobytes()
    assert np.isnan(step.descriptor).any(axis=1).tolist() == [False, True, True]
    assert envs.episodes.tolist() == [1, 1, 1]
    assert envs.step(ZERO, np.array([False, False, True])).descriptor[2].tolist() == [0, 0.5]


@pytest.mark.parametrize("only", [np.ones((1, ROWS), bool), np.ones(ROWS - 1, bool), np.ones(ROWS)])
def test_a_wrong_mark_is_refused(make, only):
    envs = make(scripted())
    envs.reset()
    with pytest.raises(EnvironmentError, match="only must be 3 bools, one for each environment"):
        envs.step(ZERO, only)


def test_what_is_not_finite_is_nan(make):
    def off_the_map(env, observation):
        return {1: (np.nan, 0.5), 2: (np.inf, -1e300)}.get(int(observation[1]), (0.25, 1.0))

    envs = make(scripted(), describe(off_the_map))
    envs.reset()
    described = [envs.step(ZERO).descriptor[0] for _ in range(5)]  # episodes 0, 1, 1, 1, 2
    assert described[0].tolist() == [0.25, 1.0]
    assert np.isnan(described[1][0]) and described[1][1] == 0.5
    assert np.isnan(described[4]).all()


@pytest.mark.parametrize("fault", ["raise", "observation", "reward"])
def test_a_cut_row_has_none(make, fault):
    def never_of_nan(env, observation):
        assert np.isfinite(observation).all()
        return observation[:2]

    envs = make(scripted(fault=fault, row=1), describe(never_of_nan), Guard(non_finite="drop"))
    envs.reset()
    step = [envs.step(ZERO) for _ in range(3)][-1]
    assert step.last[1] and not step.valid[1]
    assert np.isnan(step.descriptor).any(axis=1).tolist() == [False, True, False]


def late(given):
    def strange(env, observation):
        return given() if observation[1] == 1 and env.unwrapped.row == 1 else (0.0, 0.0)

    return strange


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: (0.0, 0.0, 0.0), r"gave shape \(3,\), its bounds have shape \(2,\)"),
        (lambda: 0.5, r"gave shape \(\), its bounds have shape \(2,\)"),
        (lambda: {}["height"], r"raised KeyError: 'height'"),
        (lambda: ("high", "low"), r"raised ValueError"),
    ],
)
def test_a_wrong_one_names_itself_and_the_environment(make, given, message):
    factories = [Scripted, partial(Scripted, 1), Scripted]
    envs = make(factories, describe(late(given)))
    envs.reset()
    envs.step(ZERO)
    wanted = rf"^environment 1: the descriptor strange {message}.* \(step 1 of episode 1, seed"
    with pytest.raises(EnvironmentError, match=wanted):
        envs.step(ZERO)


def test_from_all_that_makes_single_environments():
    def height(env, observation):
        return env.unwrapped.state[:1] ** 2

    descriptor = Descriptor(height, (0.0,), (10.0,))
    made = gymnasium.make("Pendulum-v1")
    for env in ("Pendulum-v1", lambda: gymnasium.make("Pendulum-v1"), made):
        for seeds in (EpisodeSeeds(0), EpisodeSeeds(0).for_evaluation()):
            envs = resolve(env).make_host(1, seeds, descriptor=descriptor)
            envs.reset()
            step = envs.step(np.zeros((1, 1), np.float32))
            angle = np.arccos(step.next_observation[0, 0])
            np.testing.assert_allclose(step.descriptor, [[angle**2]], rtol=1e-4)
            envs.close()
    made.close()


def test_a_vector_environment_cannot_do_either():
    vector = SyncVectorEnv([Scripted] * ROWS, autoreset_mode=AutoresetMode.DISABLED)
    for seeds in (SEEDS, SEEDS.for_evaluation()):
        with pytest.raises(EnvironmentError, match="give a callable that makes one environment"):
            resolve(vector).make_host(ROWS, seeds, descriptor=PLACE)
    envs = UserVectorEnvs(vector, SEEDS)
    envs.reset()
    with pytest.raises(EnvironmentError, match="give a callable that makes one environment"):
        envs.step(ZERO, np.ones(ROWS, bool))
    envs.close()


FEET, POSITION = describe(lambda env, observation: (0.0, 0.0)), PLACE


@pytest.mark.parametrize(
    ("wanted", "found"),
    [(None, FEET), ("feet", FEET), ("uni", FEET), ("position", POSITION), ("omni", POSITION),
     (PLACE, PLACE)],
)  # fmt: skip
def test_found_by_name(wanted, found):
    assert find_descriptor({"feet": FEET, "position": POSITION}, wanted, "Ant-v5") is found


@pytest.mark.parametrize("wanted", ["hands", "omni", ""])
def test_a_wrong_name_lists_what_there_is(wanted):
    message = rf'^"Ant-v5" has no descriptor "{wanted}"; there are: feet \(uni\), hue$'
    with pytest.raises(ConfigError, match=message):
        find_descriptor({"feet": FEET, "hue": PLACE}, wanted, "Ant-v5")


@pytest.mark.parametrize("wanted", [None, "feet"])
def test_none_at_all_says_how_to_give_one(wanted):
    with pytest.raises(ConfigError, match=r"^this environment has no .*give a Descriptor\(of, low"):
        find_descriptor({}, wanted, None)
    assert find_descriptor({}, PLACE, None) is PLACE
