"""What people type first: it works, or one line says at once what was meant."""

import io
import json
import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

import understudy as us
from tests.faults.hostile_cases import SMALL, train
from understudy import runner
from understudy.cli import main
from understudy.errors import ConfigError
from understudy.reports.run_log import read_run
from understudy.runs.progress import Progress
from understudy.training import episode_runner as playing

pytestmark = pytest.mark.agents


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return train(tmp_path_factory.mktemp("honest") / "run")


@pytest.fixture
def run(honest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(honest, tmp_path / "run"))


@pytest.fixture
def say(capsys):
    def call(*words):
        """The exit code of a command, and what it says."""
        try:
            main([str(word) for word in words])
            code = 0
        except SystemExit as end:
            code = end.code
        return code, "".join(capsys.readouterr())

    return call


@pytest.mark.parametrize(
    "words",
    ["eval . --episodes 1", "resume .", "export . policy.safetensors", "report .", "plot ."],
)
def test_commands_inside_a_run_directory(run, say, monkeypatch, words):
    monkeypatch.chdir(run)
    code, said = say(*words.split())
    assert code == 0, said
    assert us.load(".").steps == 20


def small(**changed):
    return us.SAC("jax:Pendulum-v1", us.SACConfig(**SMALL), **changed)


def test_steps_may_be_written_1e3_and_one_callback_alone():
    seen = []
    agent = small()
    summary = agent.train(2e1, callbacks=lambda facts: seen.append(facts), progress=False)
    assert summary.steps == 20 and seen
    assert len(small(num_seeds=3)) == 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: small(seed=None), "seed must be a whole number, got None"),
        (lambda: small(seed="0"), "seed must be a whole number, got '0'"),
        (lambda: small(seed=-1), "seed must be at least 0, got -1"),
        (lambda: small().train("20"), "steps must be a whole number, got '20'"),
        (lambda: small().train(2.5), "steps must be a whole number, got 2.5"),
        (lambda: small().train(0), "steps must be at least 1, got 0"),
        (lambda: small().train(5, callbacks=7), "callbacks are functions"),
        (lambda: small().train(5, observers=print), "instead of 'observers' use 'callbacks'"),
        (lambda: small().evaluate(None), "episodes must be a whole number, got None"),
    ],
)
def test_arguments_that_cannot_be_meant(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("train Pendulum-v1", "it looks like an environment: understudy train sac Pendulum-v1"),
        ("train reinforce", "instead of 'reinforce' use 'a2c' (an on-policy algorithm here)"),
        ("train dqn CartPole-v1", "instead of 'dqn' use 'ddqn'"),
        ("train sac Pendulum-v1 --total-timesteps 5", "instead of --total-timesteps use --steps"),
        ("eval run/policy.safetensors", "it is a policy, which understudy.runner.load plays"),
        ("plot runs", "its directories are runs: understudy plot runs/*"),
    ],
)
def test_hints(run, say, words, hint):
    Path("runs").mkdir()
    shutil.copytree(run, Path("runs") / "one")
    code, said = say(*words.split())
    assert code == 2 and hint in said and said.count("\n") == 1


def test_a_policy_is_loaded_from_its_file(run):
    with pytest.raises(us.UnderstudyError, match=r"is its policy\.safetensors"):
        runner.load(run)
    with pytest.raises(us.UnderstudyError, match=r"a policy, which understudy\.runner\.load"):
        us.load(run / "policy.safetensors")


class Corridor(gym.Env):
    """Never ends by itself."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize(
    "make",
    [Corridor, pytest.param(Corridor(), marks=pytest.mark.slow)],
    ids=["class", "instance"],
)
def test_an_environment_of_ones_own_has_a_name(tmp_path, make, monkeypatch):
    monkeypatch.setattr(playing, "MOST_STEPS", 20)
    agent = us.SAC(make, us.SACConfig(**SMALL))
    assert "SAC(Corridor, " in repr(agent)
    agent.train(10, run_dir=tmp_path, progress=False, run=us.RunConfig(evaluation_episodes=1))
    agent.close()
    assert read_run(tmp_path).title == "SAC on Corridor"
    assert json.loads((tmp_path / "run.json").read_text())["env_title"] == "Corridor"


def test_an_evaluation_that_nothing_ends_says_its_limit_before_it_begins(caplog, monkeypatch):
    monkeypatch.setattr(playing, "ENDLESS_STEPS", 20)
    agent = us.SAC(Corridor, us.SACConfig(**SMALL))
    assert agent.evaluate(2)["mean"] == 20.0
    assert agent.evaluate(2)["mean"] == 20.0
    agent.close()
    first, *others = (record.getMessage() for record in caplog.records)
    assert first.endswith("no time limit: an episode of an evaluation is cut off after 20 steps")
    assert len(others) == 2 and not any("no time limit" in line for line in others)


def test_a_time_limit_needs_no_other(caplog):
    agent = us.SAC(lambda: gym.wrappers.TimeLimit(Corridor(), 7), us.SACConfig(**SMALL))
    assert agent.evaluate(1)["mean"] == 7.0
    agent.close()
    assert not caplog.records


def test_the_bar_says_that_it_compiles_and_then_follows_the_steps():
    steps, screen = [0], io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, force_interactive=True)
    with Progress(100, "SAC", console=console, now=lambda: steps[0]) as bar:
        bar.update({})
        assert "compiling …" in screen.getvalue() and "0/100" in screen.getvalue()
        steps[0] = 42
        screen.truncate(0)
        bar.update({})
        assert "42/100" in screen.getvalue() and "compiling" not in screen.getvalue()


def test_without_a_terminal_a_line_says_that_it_compiles():
    screen = io.StringIO()
    with Progress(100, "SAC", console=Console(file=screen)):
        assert screen.getvalue() == "SAC | compiling …\n"


def test_a_short_training_learns_with_default_settings(caplog):
    """TD3 acted at random for 25,000 steps, whatever the length of the run, and said nothing."""
    config = us.TD3Config(hidden_sizes=(8,), batch_size=8, buffer_size=4_000)
    agent = us.TD3("jax:Pendulum-v1", config)
    agent.train(400, progress=False)
    assert agent.trainer.update_schedule.random_iterations == 40
    assert agent.trainer.position.updates == 361 and not caplog.records
    agent.train(4_000 - 400, progress=False)  # no second phase of random actions
    assert agent.trainer.update_schedule.random_iterations == 40


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (400, "step 500 of a training that ends at step 400, and so learns nothing: train longer"),
        (800, "step 500 of a training that ends at step 800, and so learns little: train longer"),
        (1_200, None),
    ],
)
def test_a_training_that_hardly_learns_says_so(steps, words, caplog):
    agent = us.SAC(
        "jax:Pendulum-v1", us.SACConfig(**SMALL | dict(min_buffer_size=500, buffer_size=512))
    )
    trainer = agent.trainer
    trainer.begin_training(steps)
    told = [record.getMessage() for record in caplog.records]
    assert not told if words is None else words in told[0]
