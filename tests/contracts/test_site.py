"""The documentation site: every page is in its navigation, every public name in its reference,
every equation can be shown, and `make docs` builds it without a warning."""

import json
import os
import re
import subprocess
import sys
from collections import Counter

import hooks
import pytest
from equations import split_line, to_mathml

import understudy as us
from tests.contracts.sources import REPOSITORY, name_of, read

DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
READMES = sorted((REPOSITORY / "src" / "understudy" / "algorithms").glob("*/README.md"))
REFERENCE = "\n".join(read(page) for page in sorted((DOCS / "reference").glob("*.md")))
# Pages outside of docs/ that another page links to and that the navigation shows.
LINKED = ["benchmarks/results/README.md", "benchmarks/results/proof/README.md",
          "benchmarks/qd/README.md"]  # fmt: skip
EQUATION = re.compile(r"\$\$(.+?)\$\$|(?<![\w\\$])\$([^$\n]+?)\$(?!\w)", re.S)


def in_navigation() -> list[str]:
    whole = read(REPOSITORY / "mkdocs.yml").partition("\nnav:\n")[2]
    return re.findall(r"([\w/]+\.md)$", whole, re.M)


def text_of(page: str) -> str:
    """A page without blocks of code and code in its lines."""
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", page, flags=re.M | re.S)


def test_every_page_is_in_the_navigation_once():
    places = [page.relative_to(DOCS).as_posix() for page in PAGES]
    places += [hooks.place_of(page) for page in [*hooks.outside_pages(), *LINKED]]
    assert Counter(in_navigation()) == Counter(places)


def test_the_reference_has_every_public_name():
    directives = set(re.findall(r"^::: understudy\.([\w.]+)$", REFERENCE, re.M))
    headings = set(
        re.findall(r"^(?:## |      heading: )(?:us|understudy)\.([\w.]+)$", REFERENCE, re.M)
    )
    callbacks = {f"callbacks.{name}" for name in vars(us.callbacks) if is_callback(name)}
    environments = {f"envs.{name}" for name in ("check", "NativeEnv", "EpisodeSeeds", "resolve")}
    wanted = {*us.__all__, *callbacks, *environments, "runner.load", "runner.Player"}
    assert wanted - directives - headings == set()


def is_callback(name: str) -> bool:
    thing = getattr(us.callbacks, name)
    return isinstance(thing, type) and thing.__module__ == us.callbacks.__name__


def test_the_reference_names_what_exists():
    from tests.contracts.test_names import resolve

    for name in re.findall(r"^::: (understudy\.[\w.]+)$", REFERENCE, re.M):
        resolve(name)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("docs/concepts/truncation.md", "concepts/truncation.md"),
        ("src/understudy/algorithms/sac/README.md", "algorithms/sac.md"),
        ("CONTRIBUTING.md", "contributing.md"),
        ("README.md", "index.md"),
        ("benchmarks/results/README.md", "benchmarks/results.md"),
        ("benchmarks/results/learning.png", "benchmarks/results/learning.png"),
        ("benchmarks/results/latency_cpu.csv", "source/benchmarks/results/latency_cpu.csv"),
        ("examples/curriculum.py", "source/examples/curriculum.py.md"),
        ("examples", "source/examples/index.md"),
        ("notebooks/first_agent.ipynb", "notebooks/first_agent.md"),
    ],
)
def test_places(path, place):
    assert hooks.place_of(path) == place


@pytest.mark.parametrize(
    ("source", "link", "moved"),
    [
        ("docs/a.md", "b.md#c", "b.md#c"),
        ("docs/a.md", "https://example.org", "https://example.org"),
        ("docs/a.md", "#c", "#c"),
        ("docs/tutorials/a.md", "../../examples/curriculum.py",
         "../source/examples/curriculum.py.md"),
        ("docs/a.md", "../CONTRIBUTING.md#tests", "contributing.md#tests"),
        ("docs/a.md", "../benchmarks/results", "benchmarks/results.md"),
        ("src/understudy/algorithms/ppo/README.md", "../a2c/README.md#actions", "a2c.md#actions"),
        ("src/understudy/algorithms/ppo/README.md", "../../../../docs/recipes.md", "../recipes.md"),
        ("CHANGELOG.md", "docs/stability.md", "stability.md"),
    ],
)  # fmt: skip
def test_links_are_moved(source, link, moved):
    page = f"[text]({link})\n\n```\n[code]({link})\n```\n"
    result = hooks.with_links(page, source, hooks.place_of(source))
    assert result == f"[text]({moved})\n\n```\n[code]({link})\n```\n"


def test_the_command_line_is_complete():
    from understudy.cli import COMMANDS

    text = hooks.command_line()
    assert [title for title in COMMANDS if f"## understudy {title}\n" not in text] == []
    assert "| `--steps N` | Environment steps in total" in text
    assert "| `RUN` | a run directory" in text
    assert re.search(r"\| `--critic-dropout X` \| .* \| DDPG, DDQN, MPO, SAC, TD3 \|", text)
    assert re.search(r"\| `--device \{auto,cpu,gpu\}` \|", text)
    assert re.search(r"\| `--generation-size N` \|", text)  # of `understudy illuminate`


@pytest.mark.parametrize(
    ("tex", "mathml"),
    [
        ("x", "<mi>x</mi>"),
        ("12.5", "<mn>12.5</mn>"),
        (r"\tfrac12 x", '<mstyle displaystyle="false" scriptlevel="0"><mfrac><mn>1</mn><mn>2</mn>'
         "</mfrac></mstyle><mi>x</mi>"),
        ("a_i^2", "<msubsup><mi>a</mi><mi>i</mi><mn>2</mn></msubsup>"),
        ("-a", '<mo form="prefix" stretchy="false">−</mo><mi>a</mi>'),
        ("a-b", '<mi>a</mi><mo stretchy="false">−</mo><mi>b</mi>'),
        (r"\log x", '<mi>log</mi><mspace width="0.167em"></mspace><mi>x</mi>'),
        (r"\mathcal N", "<mi>𝒩</mi>"),
        (r"\text{if so}", '<mi mathvariant="normal">if so</mi>'),
        ("a < b", '<mi>a</mi><mo stretchy="false">&lt;</mo><mi>b</mi>'),
    ],
)  # fmt: skip
def test_equations(tex, mathml):
    assert to_mathml(tex) == f"<math><mrow>{mathml}</mrow></math>"


def test_indices_go_below_in_a_line_of_their_own():
    assert "<munder><mi>min</mi><mi>i</mi></munder>" in to_mathml(r"\min_i x", display=True)
    assert "<msub><mi>min</mi><mi>i</mi></msub>" in to_mathml(r"\min_i x")


def test_a_line_is_divided_outside_of_braces():
    assert split_line(r"a \qquad b") == ["a ", " b"]
    assert split_line(r"{a \qquad b}") == [r"{a \qquad b}"]
    assert split_line(r"\left( a \qquad b \right)") == [r"\left( a \qquad b \right)"]


@pytest.mark.parametrize("tex", [r"\unknown", "{a", "a}", r"\frac1", r"\left( a", "a^"])
def test_wrong_equations_are_refused(tex):
    with pytest.raises(ValueError):
        to_mathml(tex)


def test_long_names_break_in_tables():
    row = "<tr>\n<td><code>{0}</code></td>\n<td><code>{1}</code></td>\n</tr><p><code>{0}</code></p>"
    broken = "us.<wbr>Agent.<wbr>set_<wbr>x, _a"
    page = row.format("us.Agent.set_x, _a", "us.Agent.set_x, _a")
    assert hooks.breakable(page) == row.format("us.Agent.set_x, _a", broken)
    long = "Long_" * 7
    assert f"<code>{'Long_<wbr>' * 6}Long_</code>" in hooks.breakable(row.format(long, ""))
    assert hooks.breakable(row.format("a_b", "batch_size=0.5")) == row.format(
        "a_b", "batch_size=0.5"
    )


@pytest.mark.parametrize("path", [*PAGES, *READMES], ids=name_of)
def test_every_equation_can_be_shown(path):
    for display, inline in EQUATION.findall(text_of(read(path))):
        to_mathml(display or inline, bool(display))


@pytest.mark.processes
def test_the_site_is_built_without_a_warning(tmp_path):
    """Strict: a warning, such as a link that leads nowhere, fails. Nothing needs the network."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr

    index = json.loads(read(tmp_path / "search" / "search_index.json"))["docs"]
    titles = {entry["location"]: entry["title"] for entry in index}
    assert "us.SAC" in titles["reference/agents/#understudy.SAC"]
    assert titles["concepts/truncation/"] == "Truncation"
    assert titles["notebooks/first_agent/"] == "SAC on a pendulum"
    assert any("resume" in entry["text"] for entry in index if entry["location"].startswith("faq/"))
    assert not any(location.startswith("source/") for location in titles)

    for readme in READMES:
        page = read(tmp_path / "algorithms" / readme.parent.name / "index.html")
        assert "<math" in page and "arithmatex" not in page and "$$" not in page
    for page in [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")]:
        loaded = (
            r"<(?:script|img|iframe)[^>]* src=\"?(?:https?:)?//|<link[^>]* href=\"?(?:https?:)?//"
        )
        found = re.search(rf"{loaded}|url\(\"?(?:https?:)?//|@import", read(page))
        assert found is None, f"{page.relative_to(tmp_path)} loads {found}"
