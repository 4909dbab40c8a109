"""An environment that fails costs an episode; one that keeps failing ends the run with reasons.

Everything happens alike in this process and in workers."""

import logging
import multiprocessing
import pickle

import numpy as np
import pytest

import understudy as us
from tests.faults.fault_env import LENGTH, FaultEnv, factories
from understudy.envs import EpisodeSeeds, Guard, ProcessEnvs, SerialEnvs
from understudy.envs.fault_guard import LIMIT, Fault, FaultCounter, FaultKind, find_abnormal
from understudy.types import ConfigError, EnvironmentError

ROWS, STEPS = 3, 12
SEEDS = EpisodeSeeds(4, ROWS)
ZERO = np.zeros((ROWS, 2), np.float32)
KINDS = ["serial", pytest.param("processes", marks=pytest.mark.processes)]
DROP = Guard(non_finite="drop")


@pytest.fixture(autouse=True)
def no_orphans():
    yield
    assert not multiprocessing.active_children()


@pytest.fixture
def make(request):
    made = []

    def build(kind, plans, guard=None, diaries=None):
        guard = guard or Guard()
        parts = factories(plans, diaries or [[] for _ in range(ROWS)])
        if kind == "serial":
            made.append(SerialEnvs(parts, SEEDS, guard=guard))
        else:
            made.append(ProcessEnvs(parts, SEEDS, num_workers=2, guard=guard))
        return made[-1]

    yield build
    for envs in made:
        envs.close()


def at(row, episode, step, what):
    """The plan that something happens there."""
    return {row: {SEEDS(row, episode): (step, what)}}


def play(envs, steps=STEPS):
    """The first observation, and all steps that follow."""
    return envs.reset(), [envs.step(ZERO) for _ in range(steps)]


def counts(**known):
    kinds = ("rebuilds", "worker_restarts", "dropped_episodes", "clipped_values")
    return dict.fromkeys(kinds, 0) | known


def assert_cut(steps, row, time):
    """Step `time` of a row ended its open episode, is no transition, and touched no other row."""
    before, step = steps[time - 1], steps[time]
    others = [other for other in range(ROWS) if other != row]
    assert not step.valid[row] and step.last[row] and not step.terminated[row]
    assert step.reward[row] == 0
    assert step.next_observation[row].tolist() == before.observation[row].tolist()
    assert step.valid[others].all() and not step.last[others].any()
    assert all(other.valid.all() for at, other in enumerate(steps) if at != time)


def fresh(row, episode):
    return [row, SEEDS(row, episode) % 997, 0, 0]


@pytest.mark.fault(
    1, "only that environment is rebuilt; its open episode is cut; the log has the details"
)
@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_that_raises_is_rebuilt_alone(make, kind, caplog):
    diaries = [[] for _ in range(ROWS)]
    envs = make(kind, at(1, 1, 3, "raise"), diaries=diaries)
    _, steps = play(envs)
    assert_cut(steps, row=1, time=LENGTH + 2)
    assert steps[LENGTH + 2].observation[1].tolist() == fresh(1, 2)
    assert steps[LENGTH + 3].next_observation[1].tolist() == [1, SEEDS(1, 2) % 997, 1, 0]
    assert envs.episodes.tolist() == [2, 2, 2]
    assert envs.faults == counts(rebuilds=1)
    [record] = caplog.records
    assert record.name == "understudy.envs" and record.levelno == logging.WARNING
    for part in ("environment 1", f"seed {SEEDS(1, 1)}", "step 3 of episode 1", "Traceback"):
        assert part in record.getMessage()
    assert "last action [-1.0, 3.75]" in record.getMessage()  # though the environment spoilt it
    assert "ZeroDivisionError: the simulator fell over" in record.getMessage()
    if kind == "serial":
        assert [diary.count("made") for diary in diaries] == [1, 2, 1]
        assert [diary.count("closed") for diary in diaries] == [0, 1, 0]


@pytest.mark.fault(1, "more failures than most_rebuilds: an error with the first traceback")
@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_that_keeps_failing_ends_the_run(make, kind):
    plan = {2: {SEEDS(2, episode): (episode + 1, "raise") for episode in range(9)}}
    envs = make(kind, plan)
    with pytest.raises(EnvironmentError, match="failed 4 times within 1,000 episodes") as caught:
        play(envs)
    told = str(caught.value)
    assert "step 1 of episode 0" in told and "Traceback" in told and "ZeroDivisionError" in told
    assert envs.faults["rebuilds"] == 4


def test_old_failures_are_forgotten():
    counter = FaultCounter(Guard(most_rebuilds=1))
    faults = [Fault(FaultKind.REBUILT, f"failure {number}") for number in range(4)]
    counter.record(faults[:1])
    counter.episodes += 1_000
    counter.record(faults[1:2])
    counter.episodes += 999
    with pytest.raises(EnvironmentError, match=r"2 times within(.|\n)*failure 1"):
        counter.record(faults[2:3])


@pytest.mark.fault(1, "a user's own instance is reset, neither rebuilt nor closed")
def test_an_instance_of_the_users_is_reset_in_place():
    seeds, diary = EpisodeSeeds(4), []
    plan = {seeds(0, 0): (2, "raise"), seeds(0, 2): (0, "raise")}
    env = FaultEnv(0, plan, diary)
    envs = SerialEnvs([lambda: env], seeds, owned=False)
    envs.reset()
    first, second = (envs.step(ZERO[:1]) for _ in range(2))
    assert first.valid.all() and not second.valid.any() and second.last.all()
    assert second.observation.tolist() == [[0, seeds(0, 1) % 997, 0, 0]]
    with pytest.raises(EnvironmentError, match=r"reset\(\) raised ConnectionError"):
        for _ in range(LENGTH):
            envs.step(ZERO[:1])
    envs.close()
    assert "closed" not in diary and diary.count("made") == 1


@pytest.mark.fault(3, "an error after 3 tries, the environment rebuilt in between")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("episode", [0, 1])
def test_a_reset_that_fails_for_ever(make, kind, episode):
    diaries = [[] for _ in range(ROWS)]
    envs = make(kind, at(1, episode, 0, "raise"), diaries=diaries)
    problem = r"environment 1: reset\(\) raised ConnectionError.*the last of 3 tries"
    with pytest.raises(EnvironmentError, match=problem):
        play(envs)
    if kind == "serial":
        assert diaries[1].count("made") == 3
        assert diaries[1].count(f"reset {SEEDS(1, episode)}") == 3


@pytest.mark.fault(3, "a reset that succeeds at the second try is counted; the run continues")
@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_that_fails_once(make, kind):
    envs = make(kind, at(1, 1, 0, "raise once"))
    _, steps = play(envs)
    assert all(step.valid.all() for step in steps)  # the episode before it was complete
    assert steps[LENGTH - 1].observation[1].tolist() == fresh(1, 1)
    assert envs.faults == counts(rebuilds=1)


@pytest.mark.fault(6, "an error that names environment, index and last action")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("nan", r"the observation is nan at index \[3\]"),
        ("inf", r"the observation is -inf at index \[3\]"),
        ("reward nan", "the reward is nan"),
        ("reward inf", "the reward is inf"),
    ],
)
def test_what_is_no_number_is_an_error(make, kind, what, problem):
    problem = rf"environment 2: {problem} \(step 4 of episode 0, .*last action \[-1.0, 3.75\]\)"
    with pytest.raises(EnvironmentError, match=problem):
        play(make(kind, at(2, 0, 4, what)))


@pytest.mark.fault(6, "on request the episode is dropped and counted")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["nan", "inf", "reward nan", "reward inf"])
@pytest.mark.parametrize("step", [3, LENGTH])  # also in the step that ends the episode
def test_what_is_no_number_can_be_dropped(make, kind, what, step):
    envs = make(kind, at(1, 0, step, what), DROP)
    _, steps = play(envs)
    assert not steps[step - 1].valid[1] and steps[step - 1].last[1]
    assert steps[step - 1].observation[1].tolist() == fresh(1, 1)
    for given in steps:
        for array in given[:-1]:
            assert np.isfinite(array).all()
    assert envs.faults == counts(dropped_episodes=1)


@pytest.mark.fault(6, "NaN from a reset: an error, or another try")
def test_a_reset_that_gives_nan(make):
    with pytest.raises(EnvironmentError, match=r"environment 1: the observation is nan.*step 0"):
        make("serial", at(1, 0, 0, "nan")).reset()
    with pytest.raises(EnvironmentError, match="the last of 3 tries"):
        make("serial", at(1, 0, 0, "nan"), DROP).reset()


@pytest.mark.fault(7, "clipped to 1e15, counted, one warning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["absurd", "too large", "absurd reward"])
def test_absurd_numbers_are_clipped(make, kind, what, caplog):
    plan = {1: {SEEDS(1, episode): (2, what) for episode in range(2)}}
    plan[2] = {SEEDS(2, 0): (0, "absurd")}
    envs = make(kind, plan)
    first, steps = play(envs)
    assert first[2, 3] == np.float32(LIMIT)
    for time in (1, LENGTH + 1):
        assert steps[time].valid.all()
        if what == "absurd reward":
            assert steps[time].reward[1] == np.float32(-LIMIT)
        else:
            sign = 1 if what == "absurd" else -1
            assert steps[time].next_observation[1, 3] == np.float32(sign * LIMIT)
    assert envs.faults == counts(clipped_values=3)
    assert len(caplog.records) == 1
    assert np.isfinite(np.square(np.float32(LIMIT)) * 1e8)


@pytest.mark.fault(8, "an error with the expected and the actual one")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("shape", r"shape \(4,\), got \(3,\)"),
        ("dtype", "dtype float32, got complex128"),
    ],
)
def test_an_observation_of_another_kind_is_an_error(make, kind, what, problem):
    problem = f"environment 1: expected the observation to have {problem}"
    with pytest.raises(EnvironmentError, match=problem):
        play(make(kind, at(1, 0, 3, what)))


def test_the_error_of_an_environment_can_be_sent_to_another_process(make):
    with pytest.raises(EnvironmentError) as caught:
        play(make("serial", at(1, 0, 3, "shape")))
    sent = pickle.loads(pickle.dumps(caught.value))
    assert type(sent) is EnvironmentError and str(sent) == str(caught.value)


@pytest.mark.agents
def test_the_error_of_an_environment_names_the_last_checkpoint(tmp_path):
    class Broken(FaultEnv):
        def __init__(self):
            super().__init__(0, {}, [])
            self.steps = 0

        def step(self, action):
            self.steps += 1
            observation, *rest = super().step(action)
            return (observation[:3] if self.steps == 45 else observation), *rest

    config = us.DDPGConfig(hidden_sizes=(8,), batch_size=4, start_steps=8, min_buffer_size=8)
    run = us.RunConfig(log_every=20, evaluate_every=0, checkpoint_every=20)
    agent = us.DDPG(Broken, config)
    with pytest.raises(EnvironmentError, match=r"shape .*last good checkpoint is .*000040"):
        agent.train(100, run=run, run_dir=tmp_path, progress=False)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_abnormal_numbers_of_every_precision_are_found(dtype):
    assert find_abnormal(np.array([1.0, -2.0], dtype)) is None
    found = find_abnormal(np.array([1.0, np.inf], dtype))
    assert found is not None and not found.finite and found.index == (1,)


@pytest.mark.fault(9, "an error before the environment is stepped")
@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_emits_nan_steps_nothing(make, kind):
    envs = make(kind, {})
    envs.reset()
    action = ZERO.copy()
    action[2, 1] = np.nan
    with pytest.raises(EnvironmentError, match=r"environment 2 .*not stepped"):
        envs.step(action)
    assert envs.step(ZERO).next_observation[:, 2].tolist() == [1, 1, 1]


@pytest.mark.processes
def test_workers_and_this_process_fail_alike(make):
    plan = {
        0: {SEEDS(0, 0): (2, "raise"), SEEDS(0, 2): (0, "raise once")},
        1: {SEEDS(1, 0): (LENGTH, "nan"), SEEDS(1, 1): (1, "absurd")},
        2: {SEEDS(2, 1): (3, "reward inf"), SEEDS(2, 2): (1, "too large")},
    }
    results = []
    for kind in ("serial", "processes"):
        envs = make(kind, plan, DROP)
        first, steps = play(envs, 20)
        results.append((first, steps, envs.episodes.tolist(), dict(envs.faults)))
    (first, steps, *rest), (other_first, other_steps, *other_rest) = results
    assert first.tobytes() == other_first.tobytes() and rest == other_rest
    for step, other in zip(steps, other_steps, strict=True):
        for left, right in zip(step[:-1], other[:-1], strict=True):
            assert left.dtype == right.dtype and left.tobytes() == right.tobytes()
    assert rest[1] == counts(rebuilds=2, dropped_episodes=2, clipped_values=2)


@pytest.mark.parametrize("kind", KINDS)
def test_replay_of_an_environment_that_fails_is_an_error(make, kind):
    envs = make(kind, at(1, 3, 2, "raise"))
    past = [np.zeros((count, 2), np.float32) for count in (0, 4, 1)]
    with pytest.raises(EnvironmentError, match="environment 1: replay raised ZeroDivisionError"):
        envs.replay(np.array([0, 3, 5]), past)


def test_the_guard_is_checked():
    with pytest.raises(ConfigError) as caught:
        Guard(step_timeout=0.0, most_rebuilds=-1, non_finite="ignore")
    for field in ("step_timeout", "most_rebuilds", "non_finite"):
        assert field in str(caught.value)
    with pytest.raises(ConfigError, match="step_timeout"):
        Guard(step_timeout=float("nan"))
