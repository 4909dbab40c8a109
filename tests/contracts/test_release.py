"""What a release states in several places is the same everywhere: version, citation, systems."""

import re
import tomllib
from typing import Any

import pytest
import yaml

import understudy
from tests.contracts.sources import REPOSITORY, name_of, read

PROJECT = tomllib.loads(read(REPOSITORY / "pyproject.toml"))["project"]
CITATION = yaml.safe_load(read(REPOSITORY / "CITATION.cff"))
# Versions of the changelog and their dates, the newest first.
RELEASES = re.findall(r"^## (\S+) \((.*)\)$", read(REPOSITORY / "CHANGELOG.md"), re.M)
# What a page says before the first release.
BEFORE_THE_FIRST = {
    "README.md": "is not on a package index yet",
    "docs/quickstart.md": "Until the first release, install from a clone",
    "docs/install.md": "is not on a package index yet",
    "docs/stability.md": "is not released yet",
}
WORKFLOWS = REPOSITORY / ".github" / "workflows"
FORMS = sorted((REPOSITORY / ".github").rglob("*.yml"))


def words_of(page: str) -> str:
    return " ".join(read(REPOSITORY / page).split())


def test_one_version():
    assert RELEASES[0][0] == CITATION["version"] == understudy.__version__


def test_dates_of_releases():
    (_, newest), *earlier = RELEASES
    assert newest == "unreleased" or newest == str(CITATION["date-released"])
    assert newest != "unreleased" or "date-released" not in CITATION
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for _, date in earlier)


@pytest.mark.parametrize("page", BEFORE_THE_FIRST)
def test_a_page_says_whether_there_is_a_release(page):
    released = any(date != "unreleased" for _, date in RELEASES)
    assert (BEFORE_THE_FIRST[page] in words_of(page)) != released
    for version in re.findall(r"\bVersion (\d[.\d]*\d)", words_of(page)):
        assert f"{understudy.__version__}.".startswith(f"{version}.")


def test_the_citation():
    assert CITATION["cff-version"] == "1.2.0" and CITATION["type"] == "software"
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["keywords"] == PROJECT["keywords"]
    assert CITATION.get("repository-code") == PROJECT.get("urls", {}).get("Repository")


def test_the_page_gives_the_citation():
    entry = re.search(r"@software\{understudy,\n(.*?)^\}", read(REPOSITORY / "docs/citation.md"),
                      re.M | re.S)  # fmt: skip
    assert entry is not None
    fields = dict(re.findall(r"^  (\w+) *= \{(.*)\},$", entry[1], re.M))
    plain = {name: value.replace("{", "").replace("}", "") for name, value in fields.items()}
    year = plain.pop("year")
    assert year == str(CITATION.get("date-released", year))[:4]
    [author] = CITATION["authors"]
    assert plain == {"author": author["name"]} | {
        key: CITATION[key] for key in ("title", "version")
    }


def test_the_page_of_installation_has_every_extra():
    table = re.search(r"^\| extra \|.*?\n\n", read(REPOSITORY / "docs/install.md"), re.M | re.S)
    assert table is not None
    cells = re.findall(r"^\| (`.*?) \|", table[0], re.M)
    named = re.findall(r"`(\w+)`", " ".join(cells))
    assert set(named) == PROJECT["optional-dependencies"].keys() - {"dev", "docs"}
    assert len(named) == len(set(named))


def workflow(name: str) -> dict[str, Any]:
    return yaml.safe_load(read(WORKFLOWS / f"{name}.yml"))


@pytest.mark.parametrize("path", FORMS, ids=name_of)
def test_forms_and_workflows_are_yaml(path):
    assert yaml.safe_load(read(path))["name"]


def test_every_supported_python_is_tested():
    rows = workflow("ci")["jobs"]["test"]["strategy"]["matrix"]["include"]
    prefix = "Programming Language :: Python :: 3."
    supported = [line for line in PROJECT["classifiers"] if line.startswith(prefix)]
    assert [f"{prefix}{row['python'].removeprefix('3.')}" for row in rows] == supported
    assert PROJECT["requires-python"] == f">={rows[0]['python']}"
    assert rows[0]["targets"] == "test docs"


@pytest.mark.parametrize("name", ["ci", "release"])
def test_workflows_run_targets_of_the_makefile(name):
    targets = set(re.findall(r"^([\w-]+):", read(REPOSITORY / "Makefile"), re.M))
    text = read(WORKFLOWS / f"{name}.yml")
    lines = re.findall(r"targets: ([\w -]+)\}|run: make PYTHON=python ([\w -]+)$", text, re.M)
    named = {target for pair in lines for words in pair for target in words.split()}
    assert named and named <= targets


def test_only_a_tag_is_published():
    release = workflow("release")
    publish = release["jobs"]["publish"]
    assert publish["if"] == "github.event_name == 'push' && github.ref_type == 'tag'"
    assert publish["needs"] == ["test", "build"]
    assert release["permissions"] == {"contents": "read"}
