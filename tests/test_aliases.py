"""Names of other libraries: every one is answered with a name that exists here."""

import contextlib
import dataclasses
import inspect
import io
import re

import pytest

import understudy as us
from understudy.algorithms import available
from understudy.aliases import ALIASES, PLACES, POLICIES, VALUES, explain
from understudy.cli import main
from understudy.errors import ConfigError

ALGORITHMS = [algorithm.config_class for algorithm in available().values()]
CONFIGS = [*ALGORITHMS, us.RunConfig, us.Cluster, us.Guard]
FIELDS = {field.name for config in CONFIGS for field in dataclasses.fields(config)}
# Names that users of Stable-Baselines3 and CleanRL type first.
FIRST = """
    learning_starts train_freq gradient_steps ent_coef net_arch n_steps exploration_fraction
    policy_lr q_lr verbose tensorboard_log total_timesteps policy_kwargs n_envs lr env_id track
    num_envs tensorboard learn predict n_epochs clip_coef clip_range_vf DQN HER
"""


def flags() -> set[str]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main(["train", "sac", "--help"])
    return {flag.replace("-", "_") for flag in re.findall(r"--([a-z0-9-]+)", shown.getvalue())}


def arguments(function) -> set[str]:
    return {*inspect.signature(function).parameters} - {"self"}


def test_every_new_name_exists():
    known = FIELDS | set(PLACES) | flags() | set(us.__all__) | {*dir(us.Agent)}
    for old, targets in ALIASES.items():
        assert targets and (set(targets) == {""} or "" not in targets), old
        assert set(targets) - {""} <= known, old


def test_a_name_in_another_place_exists_there():
    owners = {
        "us.SAC": us.SAC, "agent.train": us.Agent.train, "agent.evaluate": us.Agent.evaluate,
        "us.RunConfig": us.RunConfig.__init__,
    }  # fmt: skip
    for name, place in PLACES.items():
        assert name in arguments(owners[place.partition("(")[0]]) and name in place


def test_all_arguments_of_agents_are_places():
    """Given to a config, they are explained; and no setting of a config hides one."""
    own = arguments(us.SAC) - {"config", "settings"}
    others = arguments(us.Agent.train) - {"run"} | arguments(us.RunConfig.__init__)
    assert own | others <= PLACES.keys()
    for config in ALGORITHMS:
        assert not own & {field.name for field in dataclasses.fields(config)}


@pytest.mark.parametrize("name", FIRST.split())
def test_the_names_that_users_type_first_are_there(name):
    assert name in ALIASES


@pytest.mark.parametrize("config", ALGORITHMS, ids=lambda config: config.__name__)
def test_every_alias_is_answered_in_one_line(config):
    names = {field.name for field in dataclasses.fields(config)}
    for old in ALIASES.keys() - names:
        with pytest.raises(ConfigError) as caught:
            config(**{old: 1})
        message = str(caught.value)
        assert "\n" not in message and f"'{old}'" in message and "unknown field" not in message


@pytest.mark.parametrize(
    ("config", "old", "words"),
    [
        (us.SACConfig, "ent_coef", "instead of 'ent_coef' use 'temperature' (a number fixes it"),
        (us.A2CConfig, "ent_coef", "instead of 'ent_coef' use 'entropy_coeff'"),
        (us.A2CConfig, "n_steps", "instead of 'n_steps' use 'horizon'"),
        (us.PPOConfig, "n_steps", "instead of 'n_steps' use 'horizon'"),
        (us.PPOConfig, "n_epochs", "instead of 'n_epochs' use 'epochs'"),
        (us.PPOConfig, "update_epochs", "instead of 'update_epochs' use 'epochs'"),
        (us.PPOConfig, "clip_coef", "instead of 'clip_coef' use 'clip_range'"),
        (us.PPOConfig, "num_minibatches", "instead of 'num_minibatches' use 'minibatches'"),
        (us.PPOConfig, "ent_coef", "instead of 'ent_coef' use 'entropy_coeff'"),
        (us.PPOConfig, "vf_coef", "instead of 'vf_coef' use 'value_coeff'"),
        (us.A2CConfig, "n_epochs", "no 'n_epochs' here: it is PPO's; A2C uses each rollout once"),
        (us.A2CConfig, "clip_range", "no 'clip_range' here: it is PPO's"),
        (us.A2CConfig, "target_kl", "no 'target_kl' here: it is PPO's"),
        (us.SACConfig, "n_epochs", "there is no 'n_epochs' here; other algorithms have epochs"),
        (us.SACConfig, "recipe", "here: us.SAC(…, recipe=…) and us.SACConfig.preset(…, recipe=…)"),
        (us.SACConfig, "n_steps", "instead of 'n_steps' use 'n_step'"),
        (
            us.TD3Config,
            "learning_starts",
            "use 'start_steps' (random actions) and 'min_buffer_size' (transitions before",
        ),
        (us.A2CConfig, "learning_starts", "here: A2C learns from its newest rollout"),
        (us.TD3Config, "ent_coef", "here; other algorithms have temperature and entropy_coeff"),
        (us.SACConfig, "n_envs", "instead of 'n_envs' use us.SAC(env, num_envs=…)"),
        (us.SACConfig, "seed", "instead of 'seed' use us.SAC(env, seed=…)"),
        (us.SACConfig, "nun_seeds", "(did you mean 'num_seeds'?)"),
        (us.SACConfig, "total_timesteps", "use agent.train(steps=…)"),
        (us.SACConfig, "eval_freq", "use us.RunConfig(evaluate_every=…) (in steps of a seed)"),
    ],
)
def test_the_answer_depends_on_the_place(config, old, words):
    with pytest.raises(ConfigError) as caught:
        config(**{old: 1})
    assert words in str(caught.value)


def test_a_name_that_is_not_in_the_table():
    assert explain("zzz", ["gamma"]) is None


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--lr", "instead of --lr use --learning-rate"),
        ("--total-timesteps", "use --steps"),
        ("--total_timesteps", "use --steps"),
        ("--tensorboard", 'use --logger (the value "tensorboard")'),
        ("--track", 'use --logger (the value "wandb")'),
        ("--env-id", "understudy train ALGO ENV"),
        ("--env", "understudy train ALGO ENV"),
        ("--num-envs", "use --envs"),
        ("--n-envs", "use --envs"),
        ("--learning-starts", "use --start-steps (random actions) and --min-buffer-size"),
        ("--verbose", "use --quiet"),
        ("--exp-name", "use --run"),
        ("--run-dir", "use --run"),
        ("--cuda", 'use --device (the value "gpu")'),
        ("--ent-coef", "use --temperature"),
        ("--q-lr=1e-3", "instead of --q-lr use --critic-learning-rate"),
    ],
)
def test_flags_of_other_libraries(flag, words, capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "sac", "Pendulum-v1", flag, "1"])
    error = capsys.readouterr().err
    assert end.value.code == 2 and words in error and error.count("\n") == 1


def test_all_unknown_flags_are_told_at_once(capsys):
    with pytest.raises(SystemExit):
        main(["train", "sac", "Pendulum-v1", "--lr", "1e-3", "--gama", "0.9", "--track"])
    error = capsys.readouterr().err
    assert "--learning-rate" in error and "did you mean '--gamma'?" in error and "wandb" in error


def test_keys_of_other_libraries_in_a_file(tmp_path, capsys):
    file = tmp_path / "my.toml"
    file.write_text("lr = 1e-3\n[run]\ntotal_timesteps = 5\n[sac]\nent_coef = 0.2\n")
    with pytest.raises(SystemExit):
        main(["train", "--config", str(file)])
    error = capsys.readouterr().err
    for words in ("'lr' use 'learning_rate'", "'total_timesteps' use 'steps'", "'temperature'"):
        assert words in error


@pytest.mark.parametrize(
    "name", ["RecurrentPPO", "DQN", "HER", "TRPO", "VecNormalize", "evaluate_policy"]
)
def test_classes_of_other_libraries(name):
    with pytest.raises(ImportError, match=rf"us\.{name} ") as caught:
        getattr(us, name)
    assert "\n" not in str(caught.value)
    with pytest.raises(ImportError, match=rf"us\.{name} "):
        exec(f"from understudy import {name}")


def test_unknown_names_of_the_package_are_missing_as_usual():
    assert not hasattr(us, "Sarsa") and not hasattr(us, "__wrapped__")


def test_devices(capsys):
    with pytest.raises(ConfigError, match="the device 'cuda' is called 'gpu' here"):
        us.SAC("Pendulum-v1", device="cuda")
    with pytest.raises(SystemExit):
        main(["train", "sac", "Pendulum-v1", "--device", "cuda"])
    assert "did you mean 'gpu'?" in capsys.readouterr().err
    assert set(VALUES.values()) == {"gpu"} and us.SAC("Pendulum-v1", device="auto")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_as_the_first_argument(policy):
    for make in (
        lambda: us.SAC(policy, "Pendulum-v1"),
        lambda: us.SAC(policy, env="Pendulum-v1", verbose=1),
        lambda: us.PGAME(policy, "Pendulum-v1"),
    ):
        with pytest.raises(ConfigError, match=f"'{policy}' is not needed: the first argument is"):
            make()


def test_a_function_as_a_learning_rate():
    with pytest.raises(ConfigError, match=r"agent\.train\(schedules=…\) takes functions"):
        us.SACConfig(learning_rate=lambda left: left * 3e-4)
