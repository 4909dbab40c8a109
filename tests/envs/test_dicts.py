"""Observations that are not one array cross the border alike, however environments are stepped."""

import multiprocessing
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from tests.envs.scripted import Scripted
from tests.envs.sensing import BODY, CHOICE, EYES, LENGTH, Sensing, by_hand
from understudy.envs import EpisodeSeeds, Guard, ProcessEnvs, SerialEnvs, UserVectorEnvs, check
from understudy.envs.fault_guard import DEFAULT_GUARD
from understudy.types import Discrete, EnvironmentError, Joint

ROWS, STEPS = 3, 9
SEEDS = EpisodeSeeds(7, ROWS)
ACTIONS = np.random.default_rng(0).integers([3, 2], size=(STEPS, ROWS, 2))


@pytest.fixture(autouse=True)
def no_orphans():
    yield
    assert not multiprocessing.active_children()


def serial(factories, guard=DEFAULT_GUARD):
    return SerialEnvs(factories, SEEDS, guard=guard)


def processes(factories, guard=DEFAULT_GUARD):
    return ProcessEnvs(factories, SEEDS, 2, guard)


def sync(factories, mode=AutoresetMode.DISABLED):
    return UserVectorEnvs(SyncVectorEnv(factories, autoreset_mode=mode), SEEDS)


def asynchronous(factories):
    mode = AutoresetMode.DISABLED
    return UserVectorEnvs(
        AsyncVectorEnv(factories, autoreset_mode=mode, context="forkserver"), SEEDS
    )


PROCESSES = pytest.param(processes, marks=pytest.mark.processes)
ASYNCHRONOUS = pytest.param(asynchronous, marks=pytest.mark.processes)


def as_lived(space):
    """[STEPS + 1] what the rows' environments gave by themselves: next, and to act on."""
    made = [Sensing(space) for _ in range(ROWS)]
    episodes = [0] * ROWS
    first = [by_hand(env.reset(seed=SEEDS(row, 0))[0]) for row, env in enumerate(made)]
    lived = [(first, first)]
    for actions in ACTIONS:
        following, observation = [], []
        for row, env in enumerate(made):
            seen, _, _, truncated, _ = env.step(actions[row] + [5, -1])
            following.append(by_hand(seen))
            if truncated:
                episodes[row] += 1
                seen, _ = env.reset(seed=SEEDS(row, episodes[row]))
            observation.append(by_hand(seen))
        lived.append((following, observation))
    return lived


def bits(rows):
    return [row.tobytes() for row in rows]


def one_wrong(wrong, when=2):
    """The environment in the middle does one wrong thing."""
    return [Sensing, partial(Sensing, wrong=wrong, when=when), Sensing]


@pytest.mark.parametrize("space", [EYES, BODY, CHOICE], ids=["eyes", "body", "choice"])
@pytest.mark.parametrize("make", [serial, PROCESSES, sync, ASYNCHRONOUS])
def test_rows_are_what_environments_gave(make, space):
    envs = make([partial(Sensing, space)] * ROWS)
    (first, _), *lived = as_lived(space)
    assert bits(envs.reset()) == first
    for action, (following, observation) in zip(ACTIONS, lived, strict=True):
        step = envs.step(action)
        assert step.next_observation.dtype == envs.spec.observation.dtype
        assert step.next_observation.shape == (ROWS, *envs.spec.observation.shape)
        assert bits(step.next_observation) == following
        assert bits(step.observation) == observation
    envs.close()


@pytest.mark.parametrize("space", [EYES, BODY, CHOICE], ids=["eyes", "body", "choice"])
@pytest.mark.parametrize("batched", [False, True])
def test_final_observations_of_a_vector_environment(space, batched):
    made = SyncVectorEnv(
        [partial(Sensing, space, rude=False)] * ROWS, autoreset_mode=AutoresetMode.SAME_STEP
    )
    if batched and space != CHOICE:  # some give one dict of arrays, not an array of dicts
        stepped = made.step

        def step(actions):
            *rest, info = stepped(actions)
            if "final_obs" in info:
                info["final_obs"] = concatenate(
                    space, info["final_obs"], create_empty_array(space, ROWS)
                )
            return *rest, info

        made.step = step
    envs = UserVectorEnvs(made, SEEDS)
    _, *lived = as_lived(space)
    envs.reset()
    for action, (following, _) in zip(ACTIONS[:LENGTH], lived, strict=False):
        last = envs.step(action)
        assert bits(last.next_observation) == following
    assert last.last.all() and bits(last.observation) != following  # of the next episode
    envs.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("missing", r'environment 1: the observation has no entry "body/mode"; expected: "eye"'),
        ("dtype", r"environment 1: .*\"eye\" to have dtype uint8, got float64 \(step 2 of"),
        ("choice", r"environment 1: .*\"body/mode\" to be 1 to 3, got 4 .*last action"),
        ("nan", r"environment 1: the observation's \"body/joints\" is nan at index \[1\] \(step 2"),
        ("-inf", r"environment 1: the observation's \"body/joints\" is -inf at index \[1\]"),
    ],
)
@pytest.mark.parametrize("make", [serial, PROCESSES])
def test_faults_name_environment_and_entry(make, wrong, message):
    envs = make(one_wrong(wrong))
    envs.reset()
    with pytest.raises(EnvironmentError, match=message):
        for action in ACTIONS:
            envs.step(action)
    envs.close()


def test_faults_of_a_vector_environment_name_environment_and_entry():
    envs = sync(one_wrong("nan"))
    envs.reset()
    envs.step(ACTIONS[0])
    with pytest.raises(EnvironmentError, match=r'environment 1: .*"body/joints" is nan at index'):
        envs.step(ACTIONS[1])


@pytest.mark.parametrize("make", [serial, PROCESSES])
def test_what_is_no_number_can_be_dropped(make):
    envs = make(one_wrong("nan"), Guard(non_finite="drop"))
    seen = envs.reset()
    seen = envs.step(ACTIONS[0]).observation
    step = envs.step(ACTIONS[1])
    assert step.valid.tolist() == [True, False, True]
    assert bits(step.next_observation)[1] == bits(seen)[1]
    assert bits(step.next_observation)[::2] == as_lived(EYES)[2][0][::2]
    assert envs.faults["dropped_episodes"] == 1
    envs.close()


@pytest.mark.parametrize("make", [serial, PROCESSES, sync])
@pytest.mark.parametrize("space", [EYES, BODY], ids=["eyes", "body"])
def test_absurd_numbers_are_clipped(make, space):
    factories = [partial(Sensing, space)] * ROWS
    factories[1] = partial(Sensing, space, wrong="-1e300")
    envs = make(factories)
    envs.reset()
    envs.step(ACTIONS[0])
    got = bits(envs.step(ACTIONS[1]).next_observation)
    wanted = as_lived(space)[2][0]
    assert got[::2] == wanted[::2]
    where = (6 if space is EYES else 0) + 4
    joint = np.float32(-1e15).tobytes()
    assert got[1] == wanted[1][:where] + joint + wanted[1][where + 4 :]
    assert envs.faults["clipped_values"] == 1
    envs.close()


def test_two_faults_in_one_step_do_not_mix():
    factories = [partial(Sensing, wrong="raise"), partial(Sensing, wrong="1e20"), Sensing]
    envs = serial(factories)
    envs.reset()
    seen = envs.step(ACTIONS[0]).observation
    step = envs.step(ACTIONS[1])
    assert step.valid.tolist() == [False, True, True]
    assert bits(step.next_observation)[0] == bits(seen)[0]
    assert (envs.faults["rebuilds"], envs.faults["clipped_values"]) == (1, 1)


@pytest.mark.parametrize("make", [serial, PROCESSES, sync])
def test_several_choices_made_as_one(make):
    several, one = make([Sensing] * ROWS), make([Sensing] * ROWS)
    own = one.spec.action
    one.set_action_space(Joint.over(own))
    assert one.spec.action == Joint.over(own) and one.spec.action.n == 6
    assert bits(several.reset()) == bits(one.reset())
    for action in ACTIONS:
        mine, theirs = several.step(action)[:-1], one.step(action @ [2, 1])[:-1]
        assert all(
            left.tobytes() == right.tobytes() for left, right in zip(mine, theirs, strict=True)
        )
    if several.replayable:
        past = [ACTIONS[:2, row] for row in range(ROWS)]
        episodes = np.arange(ROWS)
        back = one.replay(episodes, [actions @ [2, 1] for actions in past])
        assert bits(several.replay(episodes, past)) == bits(back)
    one.set_action_space(own)
    assert one.spec == several.spec and one.step(ACTIONS[0]).reward.shape == (ROWS,)
    with pytest.raises(EnvironmentError, match="environments take MultiDiscrete"):
        one.set_action_space(Discrete(6))
    several.close()
    one.close()


@pytest.mark.parametrize("space", [EYES, BODY, CHOICE], ids=["eyes", "body", "choice"])
def test_they_conform(space):
    report = check(partial(Sensing, space))
    assert report.ok, str(report)
    assert "observations match their space" in str(report)
    assert any("same array" in note for note in report.notes) == (space != CHOICE)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("missing", 'no entry "body/mode"'),
        ("dtype", "dtype uint8, got float64"),
        ("nan", 'observations of "body/joints" contain NaN or infinity'),
    ],
)
def test_where_they_do_not_conform_the_entry_is_named(wrong, problem):
    report = check(partial(Sensing, wrong=wrong))
    assert any(problem in text for text in report.problems), str(report)


def test_a_dict_in_the_place_of_an_array():
    class Changed(Scripted):
        def _observe(self):
            return {"joints": super()._observe()}

    with pytest.raises(EnvironmentError, match=r"environment 0: .* to be one array, got a dict"):
        SerialEnvs([Changed], EpisodeSeeds(0)).reset()
    assert any("one array, got a dict" in text for text in check(Changed).problems)
