"""Settings over presets, given configs, and arguments of other libraries."""

import dataclasses
import inspect
import json
import logging

import pytest

import understudy as us
from understudy.agent.arguments import MOST_DEPARTURES, log_departures, tell_departures
from understudy.errors import ConfigError

ENV = "jax:Pendulum-v1"
SMALL = dict(
    hidden_sizes=(8, 8), batch_size=16, buffer_size=512, start_steps=20, min_buffer_size=20
)


def test_single_settings_override_the_preset():
    agent = us.SAC("Pendulum-v1", gamma=0.9, hidden_sizes=[8, 8])
    usual = us.SACConfig.preset("Pendulum-v1")
    assert usual.learning_rate != us.SACConfig().learning_rate
    assert agent.config == dataclasses.replace(usual, gamma=0.9, hidden_sizes=(8, 8))
    assert agent.preset == "Pendulum-v1 with gamma=0.9, hidden_sizes=(8, 8)"
    assert us.SAC("Pendulum-v1").preset == "Pendulum-v1"


def test_an_environment_without_a_preset_gets_the_defaults():
    agent = us.SAC("jax:PointNavigation-v0", gamma=0.9)
    assert agent.config == us.SACConfig(gamma=0.9) and agent.preset == "defaults with gamma=0.9"


def test_quality_diversity_takes_settings_too():
    found = us.PGAME("jax:PointNavigation-v0", generation_size=8)
    usual = us.PGAMEConfig.preset("PointNavigation-v0")
    assert found.config == dataclasses.replace(usual, generation_size=8)
    assert found.preset == "PointNavigation-v0 with generation_size=8"


def test_all_wrong_settings_are_told_before_the_environment_is_made():
    def never():
        raise AssertionError("made")

    with pytest.raises(ConfigError) as caught:
        us.SAC(never, gama=0.9, tau=0.0, num_env=2, verbose=1, learning_starts=5)
    message = str(caught.value)
    for words in (
        "'gama' (did you mean 'gamma'?)", "tau must be above 0", "us.SAC(env, num_envs=…)",
        "instead of 'verbose' use agent.train(progress=…)", "'min_buffer_size'",
    ):  # fmt: skip
        assert words in message
    assert "\n" not in message


def test_a_config_and_settings_are_refused():
    with pytest.raises(ConfigError, match=r"a config or single settings \(gamma\), not both"):
        us.SAC("Pendulum-v1", us.SACConfig(), gamma=0.9)
    with pytest.raises(ConfigError, match=r"instead of 'verbose' use agent\.train"):
        us.SAC("Pendulum-v1", us.SACConfig(), verbose=1)


def test_the_signature_stays_readable():
    shown = str(inspect.signature(us.SAC))
    assert shown.startswith("(env: Any, config: Any = None, *, seed: int = 0")
    assert "steps: int" in str(inspect.signature(us.SAC.train))


@pytest.fixture
def told(caplog):
    log = logging.getLogger("understudy.presets")
    level = log.level
    log.setLevel(logging.NOTSET)
    log_departures.cache_clear()
    yield lambda: [record.getMessage() for record in caplog.records if record.name == log.name]
    log.setLevel(level)


@pytest.mark.agents
def test_a_given_config_is_used_unchanged_and_says_once_how_it_departs(told, tmp_path):
    config = dataclasses.replace(us.SACConfig.preset(ENV), **SMALL)
    agent = us.SAC(ENV, config)
    assert agent.config is config and agent.preset == "given" and not told()
    agent.train(5, progress=False)
    (line,) = told()
    assert line.startswith("this SACConfig departs from the preset Pendulum-v1: buffer_size 512 (")
    assert "batch_size 16 (preset" in line and "hidden_sizes (8, 8) (preset" in line
    assert "learning_rate" not in line and "\n" not in line
    agent.train(5, progress=False)
    us.SAC(ENV, config).train(5, progress=False)
    path = agent.save(tmp_path / "agent")
    log_departures.cache_clear()
    us.load(path).train(5, progress=False)
    assert len(told()) == 1


def test_many_departures_are_counted(told):
    tell_departures(us.SAC(ENV, us.SACConfig(**SMALL, gamma=0.5, tau=0.5, n_step=3)), 0)
    (line,) = told()
    assert line.count("(preset") == MOST_DEPARTURES and line.endswith(" more")


def test_no_departures_without_a_preset_or_from_itself(told):
    tell_departures(us.SAC("jax:PointNavigation-v0", us.SACConfig(**SMALL)), 0)
    tell_departures(us.SAC(ENV, **SMALL), 0)
    tell_departures(us.SAC(ENV, us.SACConfig.preset(ENV)), 0)
    assert not told()


@pytest.mark.agents
def test_a_checkpoint_has_the_final_config_and_the_name(tmp_path):
    agent = us.SAC(ENV, gamma=0.9, **SMALL)
    run = us.RunConfig(evaluation_episodes=1, evaluate_every=0)
    agent.train(30, run=run, run_dir=tmp_path, progress=False)
    again = us.load(tmp_path)
    assert again.config == agent.config and again.preset == agent.preset
    assert json.loads((tmp_path / "run.json").read_text())["preset"].startswith(
        "Pendulum-v1 with gamma=0.9, hidden_sizes=(8, 8)"
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda agent: agent.train(total_timesteps=5), "instead of 'total_timesteps' use 'steps'"),
        (lambda agent: agent.train(5, callback=print), "instead of 'callback' use 'callbacks'"),
        (lambda agent: agent.train(5, progress_bar=True), "use 'progress'"),
        (lambda agent: agent.train(5, tb_log_name="x"), "use 'run_dir'"),
        (lambda agent: agent.train(5, log_interval=4), r"use us\.RunConfig\(log_every=…\)"),
        (lambda agent: agent.train(5, num_seeds=4), r"use us\.SAC\(env, num_seeds=…\)"),
        (lambda agent: agent.train(5, schedule={}), r"did you mean 'schedules'\?"),
        (lambda agent: agent.evaluate(n_eval_episodes=5), "use 'episodes'"),
        (lambda agent: us.load("x", custom_objects={}), "unknown argument 'custom_objects'"),
    ],
)
def test_arguments_of_other_libraries(call, words):
    with pytest.raises(ConfigError, match=words) as caught:
        call(us.SAC("Pendulum-v1"))
    assert "\n" not in str(caught.value)


def test_methods_of_other_libraries():
    agent = us.SAC("Pendulum-v1")
    with pytest.raises(AttributeError, match=r"instead of agent\.learn use agent\.train"):
        agent.learn(total_timesteps=5)
    with pytest.raises(AttributeError, match=r"instead of agent\.predict use agent\.act"):
        agent.predict([0.0])
    with pytest.raises(AttributeError, match="'SAC' object has no attribute 'zzz'"):
        agent.zzz  # noqa: B018
    assert not hasattr(agent, "learn") and agent.num_seeds == 1
