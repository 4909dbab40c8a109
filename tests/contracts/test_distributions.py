"""The wheel and the source distribution of the library, as a package index would get them.

No test here needs a network: the dependencies are those of this environment.
"""

import email
import json
import re
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import understudy
from hatch_build import with_absolute_links
from tests.contracts.environments import check_metadata, install, run
from tests.contracts.sources import PACKAGE, REPOSITORY, read

NAME = f"understudy-{understudy.__version__}"
# What building and testing need beside the package.
REPOSITORY_PARTS = ["pyproject.toml", "hatch_build.py", "requirements.lock", "Makefile", "LICENSE",
                    "README.md", "CITATION.cff", "tests/conftest.py", "docs/hooks.py",
                    "examples/train_pendulum.py", "benchmarks/page.py",
                    "player/pyproject.toml"]  # fmt: skip
USE = """
import importlib.metadata, json
import understudy as us

print(json.dumps({
    "file": us.__file__,
    "version": importlib.metadata.version("understudy"),
    "names": [name for name in us.__all__ if getattr(us, name) is None],
    "preset": us.SACConfig.preset_name("HalfCheetah-v5"),
}))
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The source distribution, and the wheel that is built from it."""
    directory = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", directory)
    run(*build, REPOSITORY, cwd=directory)
    return directory / f"{NAME}.tar.gz", directory / f"{NAME}-py3-none-any.whl"


def description(wheel: Path) -> tuple[email.message.Message, str]:
    """Return the metadata of a wheel, and the README among them."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"{NAME}.dist-info/METADATA").decode()
    metadata = email.message_from_string(text)
    return metadata, metadata.get_payload()


@pytest.mark.processes
def test_an_index_can_show_the_distributions(distributions):
    check_metadata(*distributions)
    metadata, readme = description(distributions[1])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert readme.startswith("# Understudy\n") and read(REPOSITORY / "README.md") != readme
    targets = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert [target for target in targets if "://" not in target] == []


@pytest.mark.processes
def test_the_wheel_holds_the_whole_package_and_nothing_else(distributions):
    files = {path for path in PACKAGE.rglob("*") if path.is_file()}
    expected = {path.relative_to(PACKAGE.parent).as_posix() for path in files
                if path.parent.name != "__pycache__"}  # fmt: skip
    with zipfile.ZipFile(distributions[1]) as wheel:
        found = {name for name in wheel.namelist() if not name.startswith(f"{NAME}.dist-info/")}
    assert found == expected
    assert {Path(name).suffix for name in found} == {".py", ".toml", ".css", ".md", ".typed"}


@pytest.mark.processes
def test_the_source_distribution_can_be_built_and_tested(distributions):
    with tarfile.open(distributions[0]) as archive:
        names = set(archive.getnames())
    assert [part for part in REPOSITORY_PARTS if f"{NAME}/{part}" not in names] == []
    assert not any("/.venv/" in name or "/.jax_cache/" in name for name in names)


@pytest.mark.processes
def test_the_wheel_works_outside_of_the_repository(distributions, tmp_path):
    commands, packages = install(distributions[1])
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = json.loads(run(commands / "python", "-I", "-c", USE, cwd=tmp_path))
    assert Path(found["file"]).is_relative_to(packages)
    assert found["version"] == understudy.__version__ and found["names"] == []
    assert found["preset"] == understudy.SACConfig.preset_name("HalfCheetah-v5") != "defaults"
    command = commands / "understudy"
    assert "train" in run(command, "--help", cwd=tmp_path)
    assert f"understudy     {understudy.__version__}, " in run(command, "doctor", cwd=tmp_path)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("[a](docs/a.md#b)", "[a](https://host/x/blob/v1/docs/a.md#b)"),
        ("[a](#b)", "[a](https://host/x/blob/v1/README.md#b)"),
        ("![a](b.png)", "![a](https://host/x/raw/v1/b.png)"),
        ("[a](https://b) x[0]", "[a](https://b) x[0]"),
    ],
)
def test_links_of_the_readme_lead_to_the_tag(text, changed):
    assert with_absolute_links(text, "https://host/x", "v1") == changed


def test_links_become_text_while_the_address_of_the_repository_is_unknown():
    text = "[a](b.md), ![c](d.png), [e](https://f)"
    assert with_absolute_links(text, None, "v1") == "a, c, [e](https://f)"
