"""Configs: frozen, complete, documented, and refused as a whole when wrong."""

import dataclasses
import inspect
import pydoc

import pytest

from understudy.algorithms import config as config_module
from understudy.algorithms.config import Config, field_docs, setting
from understudy.algorithms.sac import SACConfig
from understudy.algorithms.td3 import TD3Config
from understudy.types import ConfigError

configs = pytest.mark.parametrize("config", [TD3Config, SACConfig])


def refusal(config, **settings) -> str:
    with pytest.raises(ConfigError) as caught:
        config(**settings)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(config.__name__)
    return message


@pytest.mark.fault(15, "the error names the nearest field")
@configs
def test_an_unknown_field_is_answered_with_the_nearest(config):
    assert "'learning_rte' (did you mean 'learning_rate'?)" in refusal(config, learning_rte=1e-3)
    assert "unknown field 'zzz'" in refusal(config, zzz=1)


@pytest.mark.fault(16, "all problems in one message")
@configs
def test_all_problems_are_told_at_once(config):
    message = refusal(config, gamma=1.01, batch_size=100, buffer_size=50, min_buffer_size=10)
    assert "gamma must be at most 1, got 1.01" in message
    assert "batch_size 100 is larger than buffer_size 50" in message
    message = refusal(config, gama=0.9, tau=0.0, batch_size="big")
    assert "'gama' (did you mean 'gamma'?)" in message
    assert "tau must be above 0" in message and "batch_size must be a whole number" in message


@pytest.mark.fault(17, "a wrong type or value is refused, by name")
@configs
@pytest.mark.parametrize(
    "settings, words",
    [
        ({"learning_rate": "3e-4"}, "learning_rate must be a number, got '3e-4'"),
        ({"learning_rate": float("nan")}, "learning_rate must be finite"),
        ({"learning_rate": float("inf")}, "learning_rate must be finite"),
        ({"learning_rate": -1e-4}, "learning_rate must be at least 0"),
        ({"learning_rate": None}, "learning_rate must be a number"),
        ({"learning_rate": True}, "learning_rate must be a number"),
        ({"batch_size": 2.5}, "batch_size must be a whole number, got 2.5"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": float("nan")}, "batch_size must be a whole number"),
        ({"batch_size": True}, "batch_size must be a whole number"),
        ({"hidden_sizes": (64, 0)}, "hidden_sizes must be at least 1"),
        ({"hidden_sizes": 64}, "hidden_sizes must be a list of whole numbers"),
        ({"hidden_sizes": (64, "64")}, "hidden_sizes must be"),
        ({"activation": "rely"}, "did you mean 'relu'"),
        ({"layer_norm": 1}, "layer_norm must be true or false"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be above 0"),
        ({"buffer_size": 500}, "min_buffer_size 1000 is larger than buffer_size 500"),
        ({"n_step": 10**7}, "n_step"),
        ({"updates_per_step": 0.0}, "updates_per_step must be above 0"),
    ],
)
def test_wrong_values(config, settings, words):
    assert words in refusal(config, **settings)


@pytest.mark.fault(17, "5e3 is a count and 1 a number: exact conversions only")
@configs
def test_exact_conversions_are_made(config):
    made = config(buffer_size=5e3, batch_size=64.0, learning_rate=1, hidden_sizes=[32, 16.0])
    assert (made.buffer_size, type(made.buffer_size)) == (5000, int)
    assert (made.batch_size, type(made.batch_size)) == (64, int)
    assert (made.learning_rate, type(made.learning_rate)) == (1.0, float)
    assert made.hidden_sizes == (32, 16) and isinstance(made.hidden_sizes, tuple)
    assert made == config(buffer_size=5000, batch_size=64, learning_rate=1.0, hidden_sizes=(32, 16))
    hash(made)


@configs
def test_optional_rates_may_stay_open(config):
    assert config().actor_learning_rate is None
    assert config(actor_learning_rate=1).actor_learning_rate == 1.0
    assert "actor_learning_rate" not in config().moving()
    assert config(actor_learning_rate=1).moving()["actor_learning_rate"] == 1.0


@configs
def test_presets_construct(config):
    assert "Pendulum-v1" in config.presets
    for name, settings in config.presets.items():
        made = config.preset(name)
        assert config.preset_name(name) == name and made == config(**settings)
        assert (config.preset(f"jax:{name}"), config.preset_name(f"jax:{name}")) == (made, name)
    for name in ("Unheard-v0", None):
        assert config.preset(name) == config() and config.preset_name(name) == "defaults"


@configs
def test_single_settings_lie_over_the_preset(config):
    usual, made = config.preset("Pendulum-v1"), config.preset("Pendulum-v1", gamma=0.5)
    assert usual != config() and made == dataclasses.replace(usual, gamma=0.5)
    assert config.preset("Unheard-v0", gamma=0.5) == config(gamma=0.5)
    with pytest.raises(ConfigError) as caught:
        config.preset("Pendulum-v1", gama=0.9, tau=0.0)
    message = str(caught.value)
    assert "'gama' (did you mean 'gamma'?)" in message and "tau must be above 0" in message


@configs
def test_every_field_is_documented(config):
    names = {field.name for field in dataclasses.fields(config)}
    docs = field_docs(config)
    assert set(docs) == names
    for name, text in docs.items():
        assert len(text) > 8 and text.endswith("."), name


@configs
def test_help_shows_every_setting(config):
    """With its type, default, bounds and text; and the fields as the signature."""
    shown, docs = inspect.getdoc(config), field_docs(config)
    assert shown.startswith({TD3Config: "Twin Delayed DDPG.", SACConfig: "Soft Actor-"}[config])
    for field in dataclasses.fields(config):
        kind = inspect.formatannotation(field.type)
        assert f"\n{field.name}: {kind} = {field.default!r}" in shown
        assert docs[field.name].splitlines()[0] in shown
    gamma = "gamma: float = 0.99 (at least 0; at most 1; can change during training)\n    Discount"
    assert gamma in shown and "Settings: optimizer" in shown
    assert "(one of auto, device, host, disk)" in shown
    page = pydoc.plain(pydoc.render_doc(config))
    assert all(line in page for line in shown.splitlines())
    names = [field.name for field in dataclasses.fields(config)]
    assert [*inspect.signature(config).parameters] == names


def test_help_is_made_when_it_is_read(monkeypatch):
    """The import would take longer otherwise: the texts are read from the source."""
    made = []
    monkeypatch.setattr(config_module, "describe_settings", lambda *_: made.append(1) or "made")

    @dataclasses.dataclass(frozen=True)
    class Own(Config):
        """Own."""

    assert not made and Own.__doc__ == "made"


def test_help_of_a_config_without_a_source_file():
    space = {"dataclass": dataclasses.dataclass, "Config": Config, "setting": setting}
    code = '@dataclass(frozen=True)\nclass Own(Config):\n    """Own."""\n    x: int = setting(3)\n'
    exec(code, space)
    assert inspect.getdoc(space["Own"]) == "Own.\n\nSettings\nx: int = 3"


@configs
def test_configs_are_frozen(config):
    made = config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.gamma = 0.5
    changed = dataclasses.replace(made, gamma=0.5)
    assert (made.gamma, changed.gamma) == (0.99, 0.5)
    with pytest.raises(ConfigError):
        dataclasses.replace(made, gamma=2.0)


def test_the_papers_defaults():
    td3, sac = TD3Config(), SACConfig()
    assert (td3.policy_delay, td3.policy_noise, td3.noise_clip) == (2, 0.2, 0.5)
    assert td3.exploration_noise == 0.1
    assert (sac.temperature, sac.target_entropy, sac.use_log_temperature) == (None, None, True)
    for config in (td3, sac):
        assert (config.gamma, config.tau, config.num_critics) == (0.99, 0.005, 2)
        assert config.max_grad_norm is None and config.updates_per_step == 1.0


def test_appetite_is_the_config():
    made = SACConfig(batch_size=32, n_step=3, update_every=4, updates_per_step=0.5, start_steps=7)
    needs = made.needs
    assert (needs.batch_size, needs.n_step, needs.start_steps) == (32, 3, 7)
    assert (needs.update_every, needs.updates_per_step) == (4, 0.5)
    assert (needs.buffer_size, needs.min_buffer_size) == (1_000_000, 1_000)
