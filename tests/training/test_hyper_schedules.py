"""Hyper-parameters that move: schedules, live changes, one value per member. Nothing recompiles."""

import jax
import numpy as np
import pytest

import understudy as us
from understudy.training.hyper_schedules import HyperSchedules, check_names, per_seed
from understudy.types import ConfigError

pytestmark = pytest.mark.agents

LOOPS = pytest.mark.parametrize("env", ["Pendulum-v1", "jax:Pendulum-v1"])


def compiled(trainer):
    """How many programs each of a trainer's functions has become so far."""
    if hasattr(trainer, "transport"):
        collector = trainer.collector
        functions = (*collector.actors[0].programs.values(), trainer.transport.program)
    else:
        functions = (trainer.general_program, trainer.steady_program)
    return [function._cache_size() for function in functions]


def weights(trainer, member=0):
    state = jax.device_get(trainer.learner.state)
    return jax.tree.map(lambda x: x[member], (state.params.actor, state.params.critic))


def hyper(trainer, name):
    return np.asarray(trainer.learner.state.hyper[name])


@LOOPS
def test_a_new_learning_rate_counts_from_the_next_update_and_compiles_nothing(make_trainer, env):
    trainer = make_trainer("sac", env)
    trainer.advance(40)
    before, former = compiled(trainer), weights(trainer)
    trainer.advance(5)
    trainer.set({"learning_rate": 0.0})
    frozen = weights(trainer)
    trainer.advance(5)
    for earlier, old, new in zip(
        *map(jax.tree.leaves, (former, frozen, weights(trainer))), strict=True
    ):
        assert not np.array_equal(earlier, old)
        np.testing.assert_array_equal(old, new)  # at a rate of zero nothing moves
    trainer.set({"learning_rate": 1e-3})
    trainer.advance(5)
    assert not np.array_equal(*(jax.tree.leaves(w)[0] for w in (frozen, weights(trainer))))
    assert compiled(trainer) == before


@LOOPS
def test_a_schedule_moves_what_it_names_until_a_value_is_set_and_compiles_nothing(
    make_trainer, env
):
    trainer = make_trainer("td3", env, num_envs=2)
    trainer.position.horizon = 200
    seen = []

    def own(step):
        seen.append(step)
        return 0.5 + step / 1000

    curves = {"gamma": us.linear(0.9, 0.5), "tau": us.constant(0.5)}
    rate = us.linear(1e-2, 0.0)
    trainer.schedule({"learning_rate": rate, "exploration_noise": own, **curves})
    trainer.advance(30)
    before = compiled(trainer)
    trainer.advance(20)
    step = trainer.steps - 2  # the step that the last program was told
    assert hyper(trainer, "learning_rate")[0] == pytest.approx(1e-2 * (1 - step / 200), rel=1e-5)
    assert hyper(trainer, "exploration_noise")[0] == pytest.approx(0.5 + step / 1000, rel=1e-5)
    assert hyper(trainer, "gamma")[0] == pytest.approx(0.9 - 0.4 * step / 200, rel=1e-5)
    trainer.set({"gamma": 0.95})  # its schedule ends, the others do not
    trainer.advance(10)
    assert hyper(trainer, "gamma")[0] == np.float32(0.95)
    assert hyper(trainer, "tau")[0] == np.float32(0.5)
    trainer.advance(70)
    assert hyper(trainer, "learning_rate")[0] == 0.0  # beyond the horizon: its end
    assert compiled(trainer) == before
    assert max(seen) >= 258


@pytest.mark.slow
def test_members_with_learning_rates_of_their_own_are_single_runs(make_trainer):
    """Over the first 100 updates."""
    rates = [1e-4, 3e-3]
    several = make_trainer("sac", "Pendulum-v1", num_seeds=2)
    several.set({"learning_rate": rates})
    several.advance(120)
    assert several.position.updates == 100
    for member, rate in enumerate(rates):
        single = make_trainer("sac", "Pendulum-v1", seed=member, learning_rate=rate)
        single.advance(120)
        pairs = zip(*map(jax.tree.leaves, (weights(several, member), weights(single))), strict=True)
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)


def test_a_curve_with_one_value_per_member():
    config = us.SACConfig()
    hyper_schedules = HyperSchedules({"tau": us.linear([0.1, 0.2], [0.3, 0.2])}, 100, 2, config)
    np.testing.assert_allclose(hyper_schedules.at(50), [[0.2], [0.2]], rtol=1e-6)
    assert hyper_schedules.over([0, 100]).shape == (2, 2, 1)
    hyper_schedules.end(["tau"])
    assert np.isnan(hyper_schedules.at(0)).all()


@pytest.mark.parametrize(
    "schedules, words",
    [
        ({"learning_rate": us.linear(1e-3, -1e-3)}, "learning_rate must be at least 0"),
        ({"tau": lambda step: 2.0}, "tau must be at most 1"),
        ({"gamma": lambda step: float("nan")}, "finite"),
        ({"gamma": us.constant([0.9, 0.9, 0.9])}, "gamma must be a number, or 2, one per seed"),
    ],
)
def test_a_schedule_that_leaves_its_bounds_is_refused_before_training(schedules, words):
    with pytest.raises(ConfigError, match=words):
        HyperSchedules(schedules, 100, 2, us.SACConfig())


def test_what_cannot_move_is_named_with_what_can():
    hyper, config = us.SACConfig().moving(), us.SACConfig()
    with pytest.raises(ConfigError, match=r"'learning_rat'.*did you mean 'learning_rate'"):
        check_names(["learning_rat"], hyper, config)
    with pytest.raises(ConfigError, match="'batch_size' is no setting that can move"):
        check_names(["batch_size"], hyper, config)
    with pytest.raises(ConfigError, match="critic_learning_rate is not set in the config"):
        check_names(["critic_learning_rate"], hyper, config)
    with pytest.raises(ConfigError, match="gamma must be a number"):
        per_seed("gamma", "high", 1)
