"""No module uses the private names (`_name`) of another one, in `src/` and in `tests/`.

A name counts as a module's own if the module defines it anywhere: as a function, a class, a
variable, an argument or an attribute. KNOWN_LINES lists the uses that are left. It may only
become shorter: an entry that is no longer needed fails.
"""

import ast
from collections.abc import Iterator

from tests.contracts.sources import SOURCES, TESTS, name_of, read

# Public in spite of their spelling: those of named tuples, and of the standard library.
PUBLIC = {"_replace", "_fields", "_asdict", "_make", "_exit", "_getframe"}
BY_NAME = {"getattr", "setattr", "delattr", "hasattr"}  # also methods: monkeypatch.setattr

# A file, and the names that it uses.
KNOWN_LINES = """
src/understudy/cli/__init__.py _run_exitfuncs
src/understudy/envs/brax_envs.py _envs
src/understudy/envs/gymnasium_envs.py _max_episode_steps
tests/distributed/test_nodes.py _private
tests/envs/test_native.py _elapsed_steps
tests/training/test_hyper_schedules.py _cache_size
tests/training/test_loop.py _cache_size
"""
KNOWN = {
    file: set(names) for file, *names in (line.split() for line in KNOWN_LINES.strip().splitlines())
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC and name != "_"


def used_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that are imported, read from an object or named in a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from [alias.name for alias in node.names]
            yield from (node.module or "").split(".")
        elif isinstance(node, ast.Import):
            yield from [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Call):
            function = node.func
            called = getattr(function, "id", getattr(function, "attr", ""))
            for argument in node.args[:2] if called in BY_NAME else ():
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value.rpartition(".")[2]


def own_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] if ast.unparse(node.value) in ("self", "cls") else []


def foreign_names(source: str) -> set[str]:
    tree = ast.parse(source)
    return set(filter(is_private, used_names(tree))) - set(own_names(tree))


def test_uses_are_found():
    source = (
        "from m import _imported\nimport m._module\nx._read\nsetattr(x, '_by_name', 1)\n"
        "patch.setattr('m._patched', 1)\nx._replace(a=1)\nx.__dict__\n"
        "class A:\n    _field: int\n    def f(self):\n        self._own = 1\n"
        "def g(x):\n    return x._own, x._field\n"
    )
    assert foreign_names(source) == {"_imported", "_module", "_read", "_by_name", "_patched"}


def test_private_names_stay_in_their_module():
    found = {name_of(path): foreign_names(read(path)) for path in [*SOURCES, *TESTS]}
    new = {name: sorted(used - KNOWN.get(name, set())) for name, used in found.items()}
    assert {name: used for name, used in new.items() if used} == {}
    gone = {name: sorted(known - found.get(name, set())) for name, known in KNOWN.items()}
    assert {name: used for name, used in gone.items() if used} == {}, "remove them from KNOWN_LINES"
