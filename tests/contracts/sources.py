"""Read the source files of this repository: what the tests of this folder have in common."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "src" / "understudy"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((REPOSITORY / "tests").rglob("*.py"))

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name_of(path: Path) -> str:
    """Return the path relative to the repository."""
    return path.relative_to(REPOSITORY).as_posix()


def nodes(path: Path) -> Iterator[ast.AST]:
    """Yield every node of the syntax tree of a file."""
    return ast.walk(ast.parse(read(path), filename=str(path)))


def code_lines(source: str) -> dict[int, str]:
    """Return the lines that hold code, by their number: no blanks, comments or docstrings.

    White space is folded, and a comment at the end of a line is removed.
    """
    tokens: dict[int, list[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            parts = token.string.split("\n")
            for line, part in enumerate(parts, start=token.start[0]):
                tokens.setdefault(line, []).append(part.strip())
    for node in ast.walk(ast.parse(source)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            for line in range(value.lineno, (value.end_lineno or value.lineno) + 1):
                tokens.pop(line, None)
    return {line: " ".join(tokens[line]) for line in sorted(tokens)}
