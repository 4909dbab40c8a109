"""How the code of `src/` is written: short functions, no pickle, annotations that are executed."""

import ast
from pathlib import Path

from tests.contracts.sources import PACKAGE, REPOSITORY, SOURCES, name_of, nodes, read

MOST_FUNCTION_LINES = 60  # the mark is 50; this is where a function is certainly too long

UNSAFE_LOADERS = {"pickle", "_pickle", "dill", "joblib", "shelve", "marshal"}
# Processes of one run send each other environment constructors; files are never read this way.
PACKAGES_WITH_PROCESSES = {"envs", "distributed"}


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").split(".")[0])
    return found


def test_functions_are_short():
    long = []
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_FUNCTION_LINES:
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
    text = read(REPOSITORY / "requirements.lock")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert lines
    for line in lines:
        assert "://" not in line and not line.startswith(("-i", "-f", "--index", "--extra-index"))
        assert "==" in line or line.startswith(("--hash=sha256:", "#")), line
