"""The documentation keeps its word: snippets run, examples run, tables match the code.

python tests/contracts/test_docs.py     writes the algorithms' tables anew
"""

import importlib
import re
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ALGORITHMS = REPOSITORY / "src" / "understudy" / "algorithms"
WITH_SNIPPETS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
READMES = sorted(ALGORITHMS.glob("*/README.md"))
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))
PAGES = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *READMES, *EXAMPLES]

MARKERS = {
    "accelerator.md": [pytest.mark.slow],
    "README.md": [pytest.mark.agents],
    "callbacks.md": [pytest.mark.slow],
    "cluster.md": [pytest.mark.slow],
    "deployment.md": [pytest.mark.slow],
    "environments.md": [pytest.mark.slow],
    "quality_diversity.md": [pytest.mark.slow],
    "quickstart.md": [pytest.mark.slow],
    "seeing_and_remembering.md": [pytest.mark.slow],
    "sweeps.md": [pytest.mark.slow],
    "coming_from.md": [pytest.mark.slow],
    "coming_from_rllib.md": [pytest.mark.slow],
    "curriculum.md": [pytest.mark.slow],
    "exact_resume.md": [pytest.mark.slow],
    "first_agent.md": [pytest.mark.agents],
    "index.md": [pytest.mark.agents],
    "many_seeds.md": [pytest.mark.slow],
    "memory.md": [pytest.mark.slow],
    "one_state.md": [pytest.mark.slow],
    "own_environment.md": [pytest.mark.slow],
    "pixels.md": [pytest.mark.slow],
    "robot.md": [pytest.mark.slow],
    "logging.md": [pytest.mark.slow],
    "curriculum.py": [pytest.mark.agents],
    "custom_metric.py": [pytest.mark.agents],
    "early_stopping.py": [pytest.mark.agents],
    "own_environment.py": [pytest.mark.slow],
    "atari_pong.py": [pytest.mark.slow, pytest.mark.atari],
    "better_dqn.py": [pytest.mark.slow],
    "brax_ant.py": [pytest.mark.slow],
    "dict_observations.py": [pytest.mark.slow],
    "evaluate_and_export.py": [pytest.mark.slow],
    "images.py": [pytest.mark.slow],
    "learning_rates.py": [pytest.mark.slow],
    "many_devices.py": [pytest.mark.slow],
    "normalization.py": [pytest.mark.slow],
    "ppo_cartpole.py": [pytest.mark.agents],
    "recipe.py": [pytest.mark.slow],
    "repertoire.py": [pytest.mark.slow],
    "resume.py": [pytest.mark.slow],
    "schedules.py": [pytest.mark.slow],
    "tensorboard.py": [pytest.mark.agents],
    "vector_env.py": [pytest.mark.slow],
    "worker_processes.py": [pytest.mark.slow, pytest.mark.processes],
    "play_policy.py": [pytest.mark.agents],
    "real_time_loop.py": [pytest.mark.agents],
    "functional_td3.py": [pytest.mark.slow],
    "train_pendulum.py": [pytest.mark.agents],
    "custom_network.py": [pytest.mark.slow],
    "many_seeds.py": [pytest.mark.slow],
    "native_env.py": [pytest.mark.slow],
    "remember.py": [pytest.mark.slow],
}
MOST_STEPS = 600  # enough for a few updates with the presets of Pendulum-v1
MOST_EVALUATIONS = 128
MOST_EXAMPLE_LINES = 40
MOST_README_WORDS = 750  # without code and tables


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def snippets(path: Path) -> list[tuple[int, str]]:
    """The ```python blocks of a page, each with the line it starts on."""
    text = path.read_text(encoding="utf-8")
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start(1)), block.group(1)) for block in blocks]


def shortened(code: str) -> str:
    """The same with `.train(100_000` and its like cut down; of evaluations there are fewer."""

    def cut(call: re.Match[str]) -> str:
        name, steps = call.group(1), int(call.group(2).replace("_", ""))
        return f".{name}({min(steps, MOST_STEPS if name == 'train' else MOST_EVALUATIONS)}"

    return re.sub(r"\.(train|illuminate)\((\d[\d_]*)", cut, code)


def settings_table(config_class: Any) -> str:
    from understudy.algorithms.config import by_topic, field_docs

    docs, rows = field_docs(config_class), []
    for topic, fields in by_topic(config_class).items():
        rows += [f"\n{topic.capitalize()}:\n"] if topic else []
        rows += ["| field | default | |", "|---|---|---|"]
        rows += [
            f"| `{field.name}` | {shown(field.default)} | {' '.join(docs[field.name].split())} |"
            for field in fields
        ]
    return "\n".join(rows)


def presets_table(config_class: Any) -> str:
    rows = ["| environment | settings |", "|---|---|"]
    for environment, preset in config_class.presets.items():
        settings = ", ".join(f"`{name}={shown(value)}`" for name, value in preset.items())
        rows.append(f"| {environment} | {settings} |")
    return "\n".join(rows)


def shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:_}" if type(value) is int else str(value)


def tables(path: Path) -> dict[str, str]:
    """What stands between the marks of an algorithm's README, as it should be."""
    from understudy.algorithms import find

    config_class = find(path.parent.name).config_class
    return {"settings": settings_table(config_class), "presets": presets_table(config_class)}


def with_tables(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    for mark, table in tables(path).items():
        whole = f"<!-- {mark} -->\n{table}\n<!-- /{mark} -->"
        text = re.sub(f"<!-- {mark} -->.*?<!-- /{mark} -->", lambda _, w=whole: w, text, flags=re.S)
    return text


def marked(path: Path) -> Any:
    """A page's or an example's parameter, with the markers of what it needs."""
    return pytest.param(path, id=name_of(path), marks=MARKERS.get(path.name, ()))


@pytest.mark.parametrize("path", [marked(path) for path in WITH_SNIPPETS])
def test_snippets_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "snippet"}
    for line, code in snippets(path):
        # Blank lines in front, so that a traceback names the line of the page.
        exec(compile("\n" * line + shortened(code), str(path), "exec"), names)
    if "ray" in sys.modules:  # the next test must not find the Ray that a page has started
        sys.modules["ray"].shutdown()


def test_there_are_snippets():
    with_some = {path.name for path in WITH_SNIPPETS if snippets(path)}
    assert {"README.md", "quickstart.md", "environments.md"} <= with_some
    assert shortened("a.train(1_000_000, x=5_000)") == f"a.train({MOST_STEPS}, x=5_000)"
    assert shortened("a.train(20)") == "a.train(20)"
    assert shortened("a.illuminate(1_000, x=5)") == f"a.illuminate({MOST_EVALUATIONS}, x=5)"


@pytest.mark.parametrize("path", [marked(path) for path in EXAMPLES])
def test_examples_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A short path inside the run's own directory: sockets of worker processes lie there.
    monkeypatch.setenv("TMPDIR", tempfile.mkdtemp())
    monkeypatch.setattr("tempfile.tempdir", None)
    runpy.run_path(str(path))["main"](steps=MOST_STEPS)


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_examples_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_EXAMPLE_LINES


@pytest.mark.parametrize("path", READMES, ids=name_of)
def test_tables_match_the_config(path):
    text = path.read_text(encoding="utf-8")
    assert all(f"<!-- {mark} -->" in text for mark in ("settings", "presets"))
    assert text == with_tables(path), "run: python tests/contracts/test_docs.py"


@pytest.mark.parametrize("path", READMES, ids=name_of)
def test_readmes_name_code_that_exists(path):
    from understudy.algorithms import find

    algorithm = find(path.parent.name)
    losses = importlib.import_module(f"understudy.algorithms.{path.parent.name}.losses")
    places = {"losses": losses, algorithm.__name__: algorithm}
    named = re.findall(r"`(losses|[A-Z0-9]+)\.(\w+)`", path.read_text(encoding="utf-8"))
    assert named
    assert [name for place, name in named if not hasattr(places[place], name)] == []


def test_every_algorithm_has_a_readme():
    from understudy.algorithms import available

    assert {path.parent.name for path in READMES} == set(available())


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_no_page_names_a_machine(path):
    paths = r"(?<![\w.\])/~-])/(work|home|root|tmp|Users|mnt|opt|usr|var)\b|\bC:\\|shared/"
    found = re.search(paths, path.read_text(encoding="utf-8"))
    assert found is None, found


def heading_links(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", [p for p in PAGES if p.suffix == ".md"], ids=name_of)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            file, _, heading = target.partition("#")
            page = path.parent / file if file else path
            assert page.exists(), target
            assert not heading or heading in heading_links(page), target


def excerpts(page: Path) -> list[tuple[str, str]]:
    """(file, code) of the blocks that a page quotes from a file of the repository."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^<!-- from (\S+) -->\n```python\n(.*?)^```$", text, re.M | re.S)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md"])
def test_excerpts_are_those_of_the_file(page):
    """But for white space, because the formatter also formats the blocks of a page."""
    found = excerpts(REPOSITORY / page)
    assert found
    for file, code in found:
        source = (REPOSITORY / file).read_text(encoding="utf-8")
        assert "".join(code.split()) in "".join(source.split()), f"{file}: {code}"


def test_the_readme_is_short():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$|^\|[^\n]*$|\]\([^)]*\)", "", text, flags=re.M | re.S)
    assert len(text.split()) <= MOST_README_WORDS


if __name__ == "__main__":
    for readme in READMES:
        readme.write_text(with_tables(readme), encoding="utf-8")
