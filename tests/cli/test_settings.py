"""Flags, config files and help."""

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

import understudy
from understudy import SACConfig, TD3Config
from understudy.agent.illumination import METHODS
from understudy.algorithms import available
from understudy.algorithms.config import field_docs
from understudy.cli.parsing import show
from understudy.cli.settings import RunSettings, field_names
from understudy.cli.train import TrainSettings
from understudy.distributed.config import Cluster
from understudy.envs.fault_guard import Guard
from understudy.runs.config import RunConfig

SECTIONS = (TrainSettings, RunSettings, Guard, Cluster, RunConfig)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "command_line.md"

FILE = """
algorithm = "td3"
env = "jax:Pendulum-v1"
gamma = 0.9
tau = 0.1
batch_size = 32

[run]
steps = 500
seeds = 2
checkpoint_every = 100
logger = "tensorboard"

[td3]
tau = 0.2
hidden_sizes = 16

[sac]
temperature = 0.2
"""


@pytest.fixture
def printed(run):
    """What `understudy train … --print-config` would run, as a dictionary."""

    def call(*words):
        code, out, err = run("train", *words, "--print-config")
        assert code == 0 and err == "", err
        return tomllib.loads(out)

    return call


def test_flags_over_file_over_preset_over_defaults(printed, tmp_path):
    (tmp_path / "my.toml").write_text(FILE)
    plan = printed("--config", "my.toml", "--batch-size", "64", "--seeds", "3", "--logger", "none")
    assert (plan["algorithm"], plan["env"]) == ("td3", "jax:Pendulum-v1")
    settings = plan["td3"]
    assert settings["batch_size"] == 64  # the flag's
    assert settings["gamma"] == 0.9 and settings["hidden_sizes"] == [16]  # the file's
    assert settings["tau"] == 0.2  # the algorithm's table goes before the top
    assert settings["learning_rate"] == TD3Config.presets["Pendulum-v1"]["learning_rate"] != 3e-4
    assert settings["policy_delay"] == TD3Config.policy_delay
    assert (plan["run"]["steps"], plan["run"]["seeds"]) == (500, 3)
    assert plan["run"]["checkpoint_every"] == 100 and plan["run"]["logger"] == []
    assert "sac" not in plan


def test_flags_over_file_over_recipe_over_preset(printed, tmp_path):
    (tmp_path / "my.toml").write_text("tau = 0.01\n[run]\nrecipe = 'redq'")
    plan = printed("sac", "Pendulum-v1", "--config", "my.toml", "--num-critics", "5")
    settings, recipe = plan["sac"], SACConfig.recipes["redq"].settings
    assert plan["run"]["recipe"] == "redq"
    assert (settings["num_critics"], settings["tau"]) == (5, 0.01)  # the flag's, the file's
    assert settings["policy_delay"] == recipe["policy_delay"] == 20
    assert settings["learning_rate"] == recipe["learning_rate"] == 3e-4
    assert settings["buffer_size"] == 100_000  # the preset's
    plain = printed("sac", "Pendulum-v1", "--config", "my.toml", "--recipe", "none")
    assert plain["sac"]["learning_rate"] == 2e-3 and plain["run"]["recipe"] == "none"


def test_a_printed_config_with_a_recipe_gives_itself_again(run, tmp_path):
    words = ("td3", "Pendulum-v1", "--recipe", "fasttd3", "--batch-size", "64", "--print-config")
    code, out, err = run("train", *words)
    assert code == 0 and err == ""
    (tmp_path / "again.toml").write_text(out)
    assert run("train", "--config", "again.toml", "--print-config")[1] == out


def test_words_over_the_names_in_a_file(printed, tmp_path):
    (tmp_path / "my.toml").write_text(FILE.replace("gamma", "learning_rate"))
    plan = printed("sac", "CartPole-v1", "--config", "my.toml")
    assert (plan["algorithm"], plan["env"]) == ("sac", "CartPole-v1")
    assert plan["sac"]["temperature"] == 0.2 and plan["sac"]["tau"] == 0.1


@pytest.mark.parametrize("name", available())
def test_a_printed_config_gives_itself_again(run, tmp_path, name):
    env = "CartPole-v1" if name in ("a2c", "ddqn", "pqn") else "Pendulum-v1"
    flags = ["--max-grad-norm=none", "--learning-rate=1e-05", "--logger=tensorboard", "--steps=1e3"]
    code, out, _ = run("train", name, env, *flags, "--print-config")
    (tmp_path / "again.toml").write_text(out)
    assert code == 0 and run("train", "--config", "again.toml", "--print-config")[1] == out
    plan = tomllib.loads(out)
    assert set(plan) == {"algorithm", "env", "run", name}
    assert list(plan["run"]) == [name for section in SECTIONS for name in field_names(section)]
    assert set(plan[name]) == set(field_names(available()[name].config_class))
    assert plan[name]["max_grad_norm"] == "none" and plan[name]["learning_rate"] == 1e-5
    assert plan["run"]["logger"] == ["tensorboard"] and plan["run"]["steps"] == 1000


def test_printing_starts_nothing(run, tmp_path):
    run("train", "--print-config", "--run", "here")
    assert list(tmp_path.iterdir()) == []


def test_a_run_keeps_its_file(run, trained):
    kept = trained[0] / "config.toml"
    code, out, _ = run("train", "--config", kept, "--print-config")
    assert code == 0 and out == kept.read_text()


@pytest.mark.parametrize(
    ("file", "flags", "expected"),
    [
        ("", [], "Pendulum-v1"),
        ("[run]\nlog_every = 7", ["--steps", "30"], "Pendulum-v1"),  # no settings of SAC
        ("gamma = 0.9", [], "Pendulum-v1 and my.toml"),
        ("", ["--tau", "0.1"], "Pendulum-v1 and your flags"),
        ("gamma = 0.9", ["--tau", "0.1"], "Pendulum-v1, my.toml and your flags"),
        ("env = 'MountainCarContinuous-v0'", [], "defaults"),
        ("", ["--recipe", "redq"], "Pendulum-v1 and recipe redq"),
        ("gamma = 0.9", ["--recipe", "redq"], "Pendulum-v1, recipe redq and my.toml"),
    ],
)
def test_the_first_line_names_what_the_settings_come_from(
    run, tmp_path, monkeypatch, file, flags, expected
):
    (tmp_path / "my.toml").write_text(file)

    def stop(*_, **__):
        raise understudy.UnderstudyError("enough")

    monkeypatch.setattr("understudy.agent.Agent.train", stop)
    code, out, err = run("train", "--config", "my.toml", *flags)
    assert code == 2 and err == "understudy: error: enough\n"
    assert out.splitlines()[0].endswith(f" steps, preset: {expected}")


WRONG = {
    "all at once": (
        'gama = 0.9\nsteps = 5\n[run]\nsed = 1\nseeds = 0\n[sca]\nx = 1\n[td3]\npolicy_dely = 1\n'
        "[sac]\nbatch_size = 0",
        ["'gama' (did you mean 'gamma'?)", "steps belongs under [run]", "'sed' (did you mean",
         "[sca] (did you mean 'sac'?)", "'policy_dely' (did you mean 'policy_delay'?)",
         "batch_size must be at least 1, got 0", "seeds must be at least 1, got 0"],
    ),
    "no TOML": ("gamma = ", ["my.toml is no TOML"]),
    "not even text": (b"\xff\xfe\x00", ["my.toml is no TOML"]),
    "a wrong type": ("gamma = 'high'", ["gamma must be a number, got 'high'"]),
    "an algorithm that is none": ("algorithm = 'scs'", ["no algorithm 'scs'", "'sac'"]),
    "a number for a name": ("env = 3", ["env must be a word"]),
    "no table": ("run = 3", ["write [run]"]),
    "a misspelt name": ("enw = 'CartPole-v1'", ["'enw' (did you mean 'env'?)"]),
    "an environment that is none": ("env = 'Pendulm-v1'", ['"Pendulum-v1"']),
    "a table for a value": ("[run.steps]\nx = 1", ["steps must be a whole number"]),
    "a recipe that is none": ("[run]\nrecipe = 'redk'", ["'redk' (did you mean 'redq'?)"]),
    "a recipe of another": ("[run]\nrecipe = 'fasttd3'", ["it is a recipe of TD3"]),
    "a recipe that is no word": ("[run]\nrecipe = 5", ["recipe must be a word", "no recipe '5'"]),
    "a logger that is no word": ("[run]\nlogger = 5", ["logger must be a word, got 5"]),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_file_is_said_in_one_line(refused, tmp_path, case):
    text, expected = WRONG[case]
    (tmp_path / "my.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    line = refused("train", "--config", "my.toml")
    for words in expected:
        assert words in line


@pytest.mark.parametrize(("name", "config"), [("sac", SACConfig), ("td3", TD3Config)])
def test_help_documents_every_field(run, name, config):
    code, out, _ = run("train", name, "--help")
    assert code == 0 and f"settings of {name.upper()}" in out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    for field in (name for one in (config, *SECTIONS) for name in field_names(one)):
        flag = "--" + field.replace("_", "-")
        [place] = [i for i, line in enumerate(lines) if line.startswith(f"  {flag} ")]
        words = " ".join(lines[place : place + 2]).split()
        assert len(words) > 3, flag
    for flag in ("--run", "--config", "--print-config", "--quiet"):
        assert f"  {flag} " in out
    assert "A flag overrides the file, the file overrides the environment's preset" in out


@pytest.mark.parametrize("name", available())
def test_settings_of_seeing_and_remembering_come_last(run, name):
    late = {"encoder", "encoder_features", "frame_stack", "memory", "memory_size"}
    heading = f"settings of {name.upper()}: seeing and remembering:"
    before, after = run("train", name, "--help")[1].split(heading)
    for field in late:
        flag = f"  --{field.replace('_', '-')} "
        assert flag in after and flag not in before
    assert "  --learning-rate " in before
    env = "CartPole-v1" if name in ("ddqn", "pqn") else "Pendulum-v1"
    settings = tomllib.loads(run("train", name, env, "--print-config")[1])[name]
    assert [*settings].index("gamma") < min([*settings].index(field) for field in late)


def test_help_of_the_other_commands(run):
    for words in ([], ["-h"], ["--help"], *([name, "--help"] for name in understudy.cli.COMMANDS)):
        code, out, err = run(*words)
        assert code == 0 and "understudy" in out and err == ""
        assert max(map(len, out.splitlines())) <= 100
    overview = run()[1]
    assert all(f"understudy {name} " in overview for name in understudy.cli.COMMANDS)


def test_version(run):
    assert run("--version") == (0, f"understudy {understudy.__version__}\n", "")


def test_lists(run):
    algorithms = run("list")[1].splitlines()
    assert [line.split()[0] for line in algorithms] == [*available(), *METHODS]
    assert run("list", "algorithms")[1].splitlines() == algorithms
    envs = run("list", "envs")[1].splitlines()
    assert {"jax:Pendulum-v1", "Pendulum-v1", "HalfCheetah-v5"} <= set(envs)
    presets = run("list", "presets")[1]
    assert "hidden_sizes=64,64" in presets and "HalfCheetah-v5" in presets
    recipes = run("list", "recipes")[1]
    for text in ("sac        redq", "arXiv 2101.05982", "num_critics=10", "20 updates", "not here"):
        assert text in recipes


def test_the_page_shows_a_file_that_works(printed, tmp_path):
    [block] = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "my.toml").write_text(block)
    plan = printed("--config", "my.toml")
    assert plan["sac"]["gamma"] == 0.98 and plan["run"]["seeds"] == 4


def test_the_page_has_every_key_of_the_run():
    rows = []
    for section in SECTIONS:
        for field in dataclasses.fields(section):
            default = "–" if field.default in (None, ()) else show(field.default)
            words = " ".join(field_docs(section)[field.name].split())
            rows.append(f"| `{field.name}` | {default} | {words} |")
    assert "\n".join(rows) in PAGE.read_text(), "\n" + "\n".join(rows)
