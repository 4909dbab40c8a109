"""The packages: which may import which, where they are listed, and where their tests are."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.contracts.sources import PACKAGE, REPOSITORY, read

FOLDERS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
MODULES = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
# Folders of tests that belong to no package.
ACROSS_PACKAGES = {"benchmarks", "contracts", "faults", "learning"}


def contract_layers() -> list[set[str]]:
    """Return the layers of the import contract, the lowest one first."""
    settings = tomllib.loads(read(REPOSITORY / "pyproject.toml"))
    (contract,) = (
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["id"] == "layers"
    )
    return [set(layer.split(" | ")) for layer in reversed(contract["layers"])]


def packages_of_readme() -> list[str]:
    """Return the names in the two lines with arrows."""
    order = re.search(r"^ types ->.*\n +->.*$", read(REPOSITORY / "README.md"), re.M)
    assert order is not None
    return re.findall(r"\w+", order[0])


def packages_of_table(page: Path) -> list[str]:
    """Return the names in the first column of the table of packages."""
    table = re.search(r"^\| package \|.*\n\|[-|]+\n((?:\|.*\n)+)", read(page), re.M)
    assert table is not None
    cells = re.findall(r"^\|([^|]*)\|", table[1], re.M)
    return re.findall(r"`(\w+)`", " ".join(cells))


LISTS = {
    "README.md": packages_of_readme(),
    "CONTRIBUTING.md": packages_of_table(REPOSITORY / "CONTRIBUTING.md"),
    "docs/design.md": packages_of_table(REPOSITORY / "docs" / "design.md"),
}


def test_the_contract_names_every_package():
    assert set().union(*contract_layers()) == FOLDERS | MODULES


@pytest.mark.parametrize("page", LISTS)
def test_a_page_lists_the_packages_in_the_order_of_the_contract(page):
    names = LISTS[page]
    layer_of = {name: place for place, layer in enumerate(contract_layers()) for name in layer}
    assert len(names) == len(set(names))
    assert FOLDERS <= set(names) <= layer_of.keys()
    places = [layer_of[name] for name in names]
    assert places == sorted(places), names


def test_the_design_page_lists_the_modules_too():
    assert set(LISTS["docs/design.md"]) == FOLDERS | MODULES


def test_tests_mirror_the_packages():
    tests = REPOSITORY / "tests"
    folders = {path.parent.name for path in tests.glob("*/__init__.py")}
    assert folders == FOLDERS | ACROSS_PACKAGES
    assert {path.stem.removeprefix("test_") for path in tests.glob("test_*.py")} <= MODULES


def test_tests_change_no_import_path():
    changes = re.compile(r"^\s*sys\.path(\.|\[|\s*[+=])", re.M)
    files = [path for path in (REPOSITORY / "tests").rglob("*.py") if changes.search(read(path))]
    assert files == []


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def lint_imports(cwd: Path) -> subprocess.CompletedProcess[str]:
    command = "from importlinter.cli import lint_imports_command as run; run(['--no-cache'])"
    return python(command, cwd)


@pytest.mark.processes
def test_the_import_contract_notices_a_wrong_import(tmp_path):
    """`make lint` applies the contract to the package; here a wrong package is the proof."""
    for package in FOLDERS | MODULES:
        folder = tmp_path / "understudy" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    (tmp_path / "understudy" / "__init__.py").touch()
    worker = tmp_path / "understudy" / "envs" / "worker.py"
    worker.touch()
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    assert lint_imports(tmp_path).returncode == 0

    wrong = [("ops", "training"), ("buffers", "algorithms"), ("envs", "buffers"),
             ("runs", "agent"), ("qd", "agent")]  # fmt: skip
    for importer, imported in wrong:
        statement = f"import understudy.{imported}\n"
        (tmp_path / "understudy" / importer / "__init__.py").write_text(statement)
    worker.write_text("import jax\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1 and "BROKEN" in result.stdout
    for importer, imported in wrong:
        assert f"understudy.{importer} is not allowed to import understudy.{imported}" in (
            " ".join(result.stdout.split())
        )
    assert "understudy.envs.worker is not allowed to import jax" in result.stdout


# Packages that take long to import.
HEAVY = {"cloudpickle", "equinox", "gymnasium", "jax", "matplotlib", "multiprocessing", "numpy",
         "optax", "pandas", "ray", "rich", "scipy", "tensorboard"}  # fmt: skip


@pytest.mark.processes
@pytest.mark.parametrize(
    ("statement", "imported"),
    [
        ("import understudy", set()),
        ("import understudy.envs.worker",
         {"cloudpickle", "gymnasium", "multiprocessing", "numpy"}),
        # Rich is for the bar, Matplotlib for reports, SciPy for the cells of quality-diversity.
        ("import understudy; understudy.SAC",
         {"cloudpickle", "equinox", "gymnasium", "jax", "multiprocessing", "numpy", "optax"}),
    ],
)  # fmt: skip
def test_an_import_loads_only_what_it_needs(statement, imported):
    """An environment worker never imports JAX. An agent imports what all agents need."""
    result = python(f"{statement}; import sys; print(*sys.modules)", cwd=REPOSITORY)
    assert result.returncode == 0, result.stderr
    assert HEAVY & set(result.stdout.split()) == imported
