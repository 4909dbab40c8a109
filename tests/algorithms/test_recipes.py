"""Recipes: each makes a config over every preset, and docs/recipes.md lists it.

python -m tests.algorithms.test_recipes     writes the table of the page anew
"""

import dataclasses
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import understudy as us
from understudy.agent.arguments import choose_config
from understudy.algorithms import available
from understudy.algorithms.recipes import algorithms_with, read_recipes
from understudy.cli.parsing import show
from understudy.types import ConfigError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
CONFIGS = {name: algorithm.config_class for name, algorithm in available().items()}
RECIPES = [(name, recipe) for name, config in CONFIGS.items() for recipe in config.recipes]
# What presets change and a paper with networks of its own must fix.
FIXED = {"learning_rate", "anneal_learning_rate", "batch_size", "tau", "update_every"}
PARTIAL = {"rainbow-lite"}  # recipes whose sizes and rates are the preset's

recipes = pytest.mark.parametrize(("name", "recipe"), RECIPES)


def table() -> str:
    """The table of docs/recipes.md."""
    rows = ["| recipe | paper | settings | cost | measured |", "|---|---|---|---|---|"]
    for name, title in RECIPES:
        recipe = CONFIGS[name].recipes[title]
        settings = ", ".join(f"`{key}={show(value)}`" for key, value in recipe.settings.items())
        cells = (recipe.paper, settings, recipe.cost, recipe.result or "not here")
        rows.append(f"| {name.upper()} `{title}`: {recipe.summary} | {' | '.join(cells)} |")
    return "\n".join(rows)


def with_table(text: str) -> str:
    whole = f"<!-- recipes -->\n{table()}\n<!-- /recipes -->"
    return re.sub("<!-- recipes -->.*?<!-- /recipes -->", lambda _: whole, text, flags=re.S)


@recipes
def test_a_recipe_names_settings_of_its_algorithm_and_its_source(name, recipe):
    fields = {field.name for field in dataclasses.fields(CONFIGS[name])}
    found = CONFIGS[name].recipes[recipe]
    assert found.settings and set(found.settings) <= fields
    assert re.search(r"arXiv \d{4}\.\d{5}", found.paper)
    assert found.summary.endswith(".") and found.cost
    assert recipe in PARTIAL or set(found.settings) >= FIXED
    assert algorithms_with(recipe) == [name]  # a name means one recipe


@recipes
def test_it_wins_over_every_preset(name, recipe):
    config_class = CONFIGS[name]
    for env in (None, *config_class.presets):
        made = config_class.preset(env, recipe=recipe)
        for field, value in config_class.recipes[recipe].settings.items():
            assert getattr(made, field) == value, env


def test_the_order_of_defaults_preset_recipe_and_settings():
    preset, settings = us.SACConfig.presets["Hopper-v5"], us.SACConfig.recipes["redq"].settings
    assert preset["temperature"] == 0.2 and preset["learning_rate"] == 1e-3
    made = us.SACConfig.preset("Hopper-v5", recipe="redq", num_critics=5, tau=0.01)
    assert (made.num_critics, made.tau) == (5, 0.01)  # given
    assert made.temperature is None and made.learning_rate == 3e-4 == settings["learning_rate"]
    assert us.SACConfig.preset("Swimmer-v5", recipe="redq").gamma == 0.999  # the preset's
    assert made.n_step == 1 and made.actor_learning_rate is None  # defaults
    assert us.SACConfig.preset("Hopper-v5", recipe=None) == us.SACConfig.preset("Hopper-v5")


@pytest.mark.parametrize(
    ("config_class", "recipe", "words"),
    [
        (us.SACConfig, "readq", r"no recipe 'readq' \(did you mean 'redq'\?\); there are: redq"),
        (us.TD3Config, "redq", r"no recipe 'redq' \(it is a recipe of SAC\); there are: fasttd3"),
        (us.A2CConfig, "what", r"^A2CConfig: no recipe 'what'; there are: none$"),
    ],
)
def test_a_name_without_a_recipe_is_refused(config_class, recipe, words):
    with pytest.raises(ConfigError, match=words):
        config_class.preset("Pendulum-v1", recipe=recipe)


def test_an_agents_arguments_and_its_preset_in_words():
    made, words = choose_config(
        us.SACConfig, "Hopper-v4", None, {"recipe": "redq", "gamma": 0.9, "tau": 0.01}
    )
    assert made == us.SACConfig.preset("Hopper-v5", recipe="redq", gamma=0.9, tau=0.01)
    assert words == "Hopper-v5, recipe redq with gamma=0.9, tau=0.01"
    plain = choose_config(us.SACConfig, "Hopper-v5", None, {"recipe": None})
    assert plain == (us.SACConfig.preset("Hopper-v5"), "Hopper-v5")
    with pytest.raises(ConfigError, match=r"a config or single settings \(recipe\), not both"):
        choose_config(us.SACConfig, "Hopper-v5", us.SACConfig(), {"recipe": "redq"})


TINY = dict(
    hidden_sizes=(8,), actor_hidden_sizes=(8,), critic_hidden_sizes=(8,), batch_size=4,
    min_buffer_size=6, start_steps=6, updates_per_step=1.0, num_critics=2, normalize_rewards=True,
)  # fmt: skip
TOGETHER = ("xqc", "crossq")  # the recipes that join most options; the others are slow tests


@pytest.mark.agents
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(name, marks=() if name in TOGETHER else pytest.mark.slow)
        for name in us.SACConfig.recipes
    ],
)
def test_an_agent_with_a_recipe_learns_from_finite_numbers(recipe):
    agent = us.SAC("jax:Pendulum-v1", recipe=recipe, **TINY)
    before = jax.device_get(agent.get_weights())
    agent.train(20, run=us.RunConfig(evaluate_every=0), progress=False)
    after = jax.device_get(agent.get_weights())
    leaves = [jax.tree.leaves(tree) for tree in (before, after)]
    assert all(np.isfinite(leaf).all() for leaf in leaves[1])
    assert all(
        any((old != new).any() for old, new in zip(*map(jax.tree.leaves, pair), strict=True))
        for pair in zip(before.values(), after.values(), strict=True)
    )
    if recipe == "xqc":
        for layer in agent.get_weights()["critic"].encoder.layers:
            np.testing.assert_allclose(np.linalg.norm(layer.weight, axis=-2), 1.0, rtol=1e-5)
    agent.close()


def test_lists_and_none_of_a_file_become_values(tmp_path):
    text = '[x]\nsummary = "a"\npaper = "b"\ncost = "c"\nresult = "d"\n[x.settings]\n'
    (tmp_path / "recipes.toml").write_text(text + 'sizes = [1, 2]\nlimit = "none"\nname = "adam"')
    (recipe,) = read_recipes(str(tmp_path / "config.py")).values()
    assert recipe.settings == {"sizes": (1, 2), "limit": None, "name": "adam"}
    assert (recipe.summary, recipe.result) == ("a", "d")


def test_the_page_lists_all_recipes():
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_table(text), "run: python -m tests.algorithms.test_recipes"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
