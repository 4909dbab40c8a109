"""Promises about the code as a whole: who imports whom, what workers load, how long pages are."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "src" / "understudy"
SOURCES = sorted(PACKAGE.rglob("*.py"))

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60  # the mark is 50; this is where a page is certainly too long

UNSAFE_LOADERS = {"pickle", "_pickle", "dill", "joblib", "shelve", "marshal"}
# Processes of one run hand each other environment constructors; files are never read this way.
PACKAGES_WITH_PROCESSES = {"envs", "distributed"}


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120
    )


def lint_imports(cwd: Path) -> subprocess.CompletedProcess[str]:
    command = "from importlinter.cli import lint_imports_command as run; run(['--no-cache'])"
    return python(command, cwd)


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.processes
def test_the_import_contract_notices_a_wrong_import(tmp_path):
    """`make lint` applies the contract to the package; here a wrong package is the proof."""
    packages = [
        "errors",
        "bounds",
        "reading",
        "observing",
        "runner",
        "types",
        "state_dict",
        "ops",
        "networks",
        "buffers",
    ]
    packages += ["algorithms", "envs", "training", "runs", "qd", "distributed", "export"]
    packages += ["reports", "agent", "sweep", "cli"]
    for package in packages:
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


@pytest.mark.processes
@pytest.mark.parametrize("module", ["understudy", "understudy.envs.worker"])
def test_an_environment_worker_never_imports_jax(module):
    heavy = "{'jax', 'jaxlib', 'equinox', 'optax', 'matplotlib'}"
    result = python(
        f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))", cwd=REPOSITORY
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_pages_are_short():
    long = []
    for path in SOURCES:
        if len(path.read_text(encoding="utf-8").splitlines()) > MAX_FILE_LINES:
            long.append(name_of(path))
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{name_of(path)}: {node.name} has {lines} lines")
    assert not long


def test_nothing_is_unpickled():
    wrong = []
    for path in SOURCES:
        imported = imported_modules(path)
        wrong += [f"{name_of(path)} imports {name}" for name in imported & UNSAFE_LOADERS]
        if path.relative_to(PACKAGE).parts[0] not in PACKAGES_WITH_PROCESSES:
            wrong += [name_of(path)] if "cloudpickle" in imported else []
        for node in nodes(path):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                allowed = isinstance(node.value, ast.Constant) and node.value.value is False
                wrong += [] if allowed else [f"{name_of(path)}: allow_pickle"]
    assert not wrong


def test_annotations_are_executable():
    """Postponed annotations are strings: the runtime checker would silently see nothing."""
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                assert "annotations" not in {alias.name for alias in node.names}, name_of(path)


def test_the_lock_file_names_no_addresses():
    text = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert lines
    for line in lines:
        assert "://" not in line and not line.startswith(("-i", "-f", "--index", "--extra-index"))
        assert "==" in line or line.startswith(("--hash=sha256:", "#")), line
