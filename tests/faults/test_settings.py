"""Settings that are wrong, as a user meets the answer."""

import jax.numpy as jnp
import numpy as np
import pytest

import understudy as us
from understudy.cli import main
from understudy.ops.densities import squashed_gaussian_log_prob
from understudy.types import ConfigError


def refusal(*words):
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    assert caught.value.code == 2


@pytest.mark.fault(15, "the error names the nearest field, on the terminal too")
def test_a_misspelt_field(capsys):
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        us.SACConfig(learning_rte=1e-3)
    refusal("train", "sac", "Pendulum-v1", "--learning-rte", 1e-3)
    assert "did you mean '--learning-rate'?" in capsys.readouterr().err


@pytest.mark.fault(16, "all values out of range are named in one message, before anything starts")
def test_values_out_of_range(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        us.SACConfig(gamma=1.01, learning_rate=-1.0, batch_size=512, buffer_size=256, n_step=300)
    for words in ("gamma", "learning_rate", "batch_size 512 is larger than", "n_step"):
        assert words in str(caught.value)
    with pytest.raises(ConfigError, match="num_envs must be at least 1"):
        us.SAC("Pendulum-v1", num_envs=0)
    refusal("train", "sac", "Pendulum-v1", "--gamma", 1.01, "--learning-rate", "nan")
    told = capsys.readouterr().err
    assert "gamma" in told and "learning_rate" in told and told.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.fault(17, "exact conversions are made, others refused")
def test_types(capsys):
    assert us.SACConfig(buffer_size=5e3).buffer_size == 5_000
    with pytest.raises(ConfigError, match="learning_rate must be a number, got '3e-4'"):
        us.SACConfig(learning_rate="3e-4")
    refusal("train", "sac", "Pendulum-v1", "--batch-size", 2.5)
    assert "batch_size must be a whole number, got 2.5" in capsys.readouterr().err


@pytest.mark.fault(22, "log-probabilities stay finite as actions approach their bounds")
def test_actions_at_their_bounds():
    edge = np.nextafter(np.float32(1.0), np.float32(0.0))
    action = jnp.array([[-1.0], [-edge], [0.0], [edge], [1.0]], jnp.float32)
    for mean, log_std in ((0.0, -20.0), (0.0, 2.0), (1e3, 0.0), (-1e3, -5.0)):
        told = squashed_gaussian_log_prob(action, jnp.full((5, 1), mean), jnp.full((5, 1), log_std))
        assert np.isfinite(told).all()
