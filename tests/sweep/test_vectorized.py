"""Sweeps: what is tried, that a member is the single run with its settings, and what is told."""

import csv
import shlex

import numpy as np
import pytest

import understudy as us
from understudy.errors import ConfigError, EnvironmentError
from understudy.sweep import Range, sweep
from understudy.sweep.space import choose, spell
from understudy.sweep.vectorized import differing_schedules

pytestmark = pytest.mark.agents

TINY = dict(hidden_sizes=(8,), batch_size=16, buffer_size=512, start_steps=20, min_buffer_size=20)
SAC = us.SACConfig(**TINY)
ENDLESS = 1e10  # a learning rate after which no gradient is finite


# -- what is tried ------------------------------------------------------------------------------


def test_lists_make_a_grid():
    settings = choose({"gamma": [0.9, 0.99], "tau": [0.1, 0.2, 0.3]}, None, 0)
    assert [tuple(each.values()) for each in settings] == [
        (g, t) for g in (0.9, 0.99) for t in (0.1, 0.2, 0.3)
    ]
    assert choose({"gamma": [0.9, 0.99]}, 2, 0) == [{"gamma": 0.9}, {"gamma": 0.99}]


def test_a_range_is_met_evenly_with_both_ends():
    values = [each["tau"] for each in choose({"tau": Range(0.1, 0.5)}, 5, 0)]
    np.testing.assert_allclose(values, [0.1, 0.2, 0.3, 0.4, 0.5])
    rates = [each["rate"] for each in choose({"rate": Range(1e-4, 1e-2, log=True)}, 5, 3)]
    np.testing.assert_allclose(np.diff(np.log(rates)), np.log(100) / 4, rtol=1e-3)
    assert (rates[0], rates[-1]) == (1e-4, 1e-2)
    assert choose({"tau": Range(0.1, 0.5)}, 1, 0) == [{"tau": 0.3}]


def test_several_fields_are_spread_over_each_other():
    vary = {"rate": Range(1e-4, 1e-2, log=True), "tau": Range(0.1, 0.5), "gamma": [0.9, 0.99]}
    settings = choose(vary, 12, 7)
    assert len({each["rate"] for each in settings}) == len({each["tau"] for each in settings}) == 12
    assert sorted(each["gamma"] for each in settings) == [0.9] * 6 + [0.99] * 6
    for gamma in (0.9, 0.99):  # both are tried with low and with high rates
        rates = sorted(each["rate"] for each in settings if each["gamma"] == gamma)
        assert rates[0] < 1e-3 < rates[-1]
    assert choose(vary, 12, 7) == settings
    assert choose(vary, 12, 8) != settings


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a", 1.0), "between two numbers, got 'a'"),
        ((0.0, float("inf")), "between two numbers"),
        ((2.0, 1.0), "a range must rise"),
        ((0.0, 1.0, True), "with :log must be above 0, got 0..1:log"),
    ],
)
def test_ranges_that_are_none(arguments, words):
    with pytest.raises(ConfigError, match=words):
        Range(*arguments)


def test_what_varies_as_it_is_typed():
    assert spell(Range(1e-4, 1e-2, log=True)) == "0.0001..0.01:log"
    assert spell([(64, 64), None, True, 3, 0.1, "relu"]) == "64x64,none,true,3,0.1,relu"


@pytest.mark.parametrize(
    ("vary", "options", "words"),
    [
        ({}, {}, "nothing varies"),
        ({"gama": [0.9, 0.99]}, {}, "did you mean 'gamma'"),
        ({"batch_size": [8, 16]}, {}, "batch_size cannot vary within one program.*learning_rate"),
        ({"hidden_sizes": [(8,)], "tau": [0.1]}, {}, "hidden_sizes cannot vary.*Optuna"),
        ({"gamma": [0.9, 1.5]}, {}, "gamma must be at most 1, got 1.5"),
        ({"gamma": "0.9"}, {}, "gamma must vary over a Range or a list"),
        ({"gamma": [0.9, 0.9]}, {}, "gamma has a value twice"),
        ({"gamma": [0.9, 0.99]}, {"members": 3}, "a grid of 2 settings, not of 3"),
        ({"gamma": Range(0.9, 0.99)}, {"members": 3, "repeats": 2}, "multiple of repeats"),
        ({"gamma": Range(0.9, 0.99), "tau": [0.1, 0.2]}, {"members": 1}, "1 settings cannot try"),
        ({"layer_norm": Range(0.0, 1.0)}, {}, "layer_norm is no number: give it a list"),
        ({"gamma": [0.9, 0.99]}, {"repeats": 0}, "repeats must be at least 1"),
        ({"gamma": [0.9, 0.99]}, {"steps": 0}, "steps must be at least 1"),
    ],
)
def test_wrong_use_is_answered_before_anything_starts(vary, options, words):
    with pytest.raises(ConfigError, match=words) as caught:
        sweep("sac", "jax:Pendulum-v1", vary, config=SAC, **{"steps": 10} | options)
    assert "\n" not in str(caught.value)


def test_an_environment_that_is_not_there():
    with pytest.raises(EnvironmentError, match="Pendulum-v1"):
        sweep("sac", "Pendulm-v1", {"gamma": [0.9, 0.99]}, steps=10)


# -- what members do ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Three learning rates, one of them endless, two members each."""
    directory = tmp_path_factory.mktemp("sweep") / "run"
    vary = {"learning_rate": [1e-3, ENDLESS, 3e-3]}
    options = dict(repeats=2, steps=200, config=SAC, seed=5, episodes=2, run_dir=directory)
    return sweep("sac", "jax:Pendulum-v1", vary, **options), directory


def test_a_setting_that_diverges_comes_last_and_spares_the_others(swept):
    result, _ = swept
    assert [each.state for each in result.outcomes] == ["finished", "finished", "diverged"]
    assert result.outcomes[-1].settings == {"learning_rate": ENDLESS}
    assert np.isnan(result.outcomes[-1].mean)
    assert result.best.mean >= result.outcomes[1].mean


def test_a_member_is_the_single_run_with_its_settings(swept):
    result, _ = swept
    run = us.RunConfig(log_every=20, evaluate_every=20, evaluation_episodes=2)
    outcome = next(each for each in result.outcomes if each.settings == {"learning_rate": 3e-3})
    assert outcome.seed == 9  # member 4
    config = us.SACConfig(**TINY, **outcome.settings)
    alone = us.SAC("jax:Pendulum-v1", config, seed=9, num_seeds=2)
    summary = alone.train(200, run=run, progress=False)
    np.testing.assert_allclose(outcome.returns, summary.returns, rtol=1e-3)
    evaluations = [facts["eval/mean_reward_per_seed"] for facts in summary.history]
    np.testing.assert_allclose(outcome.curve, np.array(evaluations).T, rtol=1e-3)
    assert outcome.steps == [facts["time/total_steps"] for facts in summary.history]


def test_settings_make_a_difference(swept):
    first, second = swept[0].outcomes[:2]
    assert not np.allclose(first.returns, second.returns, rtol=1e-3)


def test_a_schedule_of_the_configs_own_starts_where_each_member_says():
    """Annealing goes on; it starts at the varied value."""
    configs = [us.A2CConfig(anneal_learning_rate=True, learning_rate=r) for r in (1e-3, 1e-2)]
    assert us.A2CConfig(anneal_learning_rate=True).schedules().keys() == {"learning_rate"}
    curve = differing_schedules(configs)["learning_rate"]
    np.testing.assert_allclose(curve(50, 100), [5e-4, 5e-3])
    assert differing_schedules([configs[0]] * 2) == {}


@pytest.mark.slow
def test_annealed_members_are_single_runs_too():
    base = dict(hidden_sizes=(8,), anneal_learning_rate=True, horizon=4)
    options = dict(steps=160, config=us.A2CConfig(**base), num_envs=2, episodes=2, seed=3)
    vary = {"learning_rate": [1e-3, 1e-1], "entropy_coeff": [0.01]}
    result = sweep("a2c", "jax:Pendulum-v1", vary, **options)
    wide = next(each for each in result.outcomes if each.settings["learning_rate"] == 1e-1)
    config = us.A2CConfig(**base, learning_rate=1e-1, entropy_coeff=0.01)
    alone = us.A2C("jax:Pendulum-v1", config, seed=4, num_envs=2)
    run = us.RunConfig(log_every=16, evaluate_every=16, evaluation_episodes=2)
    returns = alone.train(160, run=run, progress=False).returns
    np.testing.assert_allclose(wide.returns, returns, rtol=1e-3)


@pytest.mark.slow
def test_a_field_that_the_config_leaves_open_can_vary():
    vary = {"temperature": [0.1, 0.2], "critic_learning_rate": [1e-3]}
    result = sweep("sac", "Pendulum-v1", vary, steps=30, config=SAC, episodes=1)
    assert {each.settings["temperature"] for each in result.outcomes} == {0.1, 0.2}
    assert all(each.returns.shape == (1, 1) for each in result.outcomes)


@pytest.mark.slow
def test_when_everything_diverges():
    with pytest.raises(us.UnderstudyError, match="diverged with every setting"):
        vary = {"learning_rate": [ENDLESS]}
        sweep("sac", "jax:Pendulum-v1", vary, steps=200, config=SAC, episodes=1)


# -- what is told -------------------------------------------------------------------------------


def test_the_table_has_the_best_first(swept):
    lines = swept[0].table().splitlines()
    assert lines[0].split() == ["rank", "learning_rate", "mean", "std"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3"]
    best = swept[0].best
    assert lines[1].split()[1:] == [
        f"{best.settings['learning_rate']:g}", f"{best.mean:.1f}", f"{best.std:.1f}"
    ]  # fmt: skip
    assert lines[3].endswith("diverged") and not lines[2].endswith("finished")


def test_files_of_a_sweep(swept):
    result, directory = swept
    assert sorted(path.name for path in directory.iterdir()) == ["sweep.csv", "sweep.png"]
    assert (directory / "sweep.png").stat().st_size > 10_000
    with (directory / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["rank"]) for row in rows] == [1, 2, 3]
    assert [float(row["mean"]) for row in rows[:2]] == [each.mean for each in result.outcomes[:2]]
    assert {row["repeats"] for row in rows} == {"2"}


def test_the_best_setting_as_a_command(swept):
    words = shlex.split(swept[0].command())
    assert words[:4] == ["understudy", "train", "sac", "jax:Pendulum-v1"]
    flags = dict(zip(words[4::2], words[5::2], strict=True))
    best = swept[0].best
    assert float(flags["--learning-rate"]) == best.settings["learning_rate"]
    assert (flags["--steps"], flags["--seeds"]) == ("200", "2")
    assert int(flags["--seed"]) == best.seed
    assert (flags["--hidden-sizes"], flags["--batch-size"]) == ("8", "16")  # unlike the preset
