"""The reading path of SAC that docs/design.md lists is what a training calls, and it is short."""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import understudy as us
from tests.contracts.sources import code_lines
from understudy.training.program_cache import forget_programs

SOURCE = Path(us.__file__).parent
PAGE = Path(__file__).resolve().parents[2] / "docs" / "design.md"
MOST_LINES, MOST_FILES = 1_000, 11


def listed() -> tuple[list[str], list[str]]:
    """The files on the path, and the files and packages that can be skipped."""
    section = PAGE.read_text(encoding="utf-8").split("## How SAC trains: what to read")[1]
    path, skipped = section.split("\n## ")[0].split("| skipped |")
    first_cells = "|".join(re.findall(r"^\|([^|]*)\|", skipped, re.MULTILINE))
    return re.findall(r"^\| `([^`]*)` \|", path, re.MULTILINE), re.findall("`([^`]*)`", first_cells)


@pytest.fixture(scope="module")
def called() -> dict[str, set[int]]:
    """The first lines of the functions that are called while SAC trains, by their file."""
    lines: dict[str, set[int]] = defaultdict(set)
    codes = {}  # by identity: the hash of a code object reads all of it

    def note(frame, event, _):
        if event == "call":
            codes[id(frame.f_code)] = frame.f_code

    forget_programs()  # programs that other tests have traced would not be traced again
    config = us.SACConfig(
        hidden_sizes=(8,), batch_size=8, buffer_size=100, start_steps=2, min_buffer_size=4
    )
    agent = us.SAC("Pendulum-v1", config)
    trainer = agent.trainer
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        trainer.advance(8)
    finally:
        sys.setprofile(before)
    assert trainer.position.updates == 4
    agent.close()
    for code in codes.values():
        file = Path(code.co_filename)
        if file.is_relative_to(SOURCE):
            lines[file.relative_to(SOURCE).as_posix()].add(code.co_firstlineno)
    return lines


def functions(source: str) -> list[tuple[range, range]]:
    """The lines on which each function may begin (its decorators count), and all of its lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            assert node.end_lineno is not None
            found.append((range(first, node.lineno + 1), range(first, node.end_lineno + 1)))
    return found


def lines_to_read(source: str, called: set[int]) -> int:
    """Without functions that were not called, and in which no function was."""
    lines = set(code_lines(source))
    for _, body in functions(source):
        if not any(called & set(begin) for begin, own in functions(source) if own[0] in body):
            lines.difference_update(body)
    return len(lines)


def test_lines_to_read_are_counted():
    source = (
        '"""Words."""\n\ndef used(x):  # a comment\n    """More."""\n    return x\n'
        "\n\n@mark\ndef unused():\n    pass\n\ndef outer():\n    def inner(): ...\n"
    )
    assert lines_to_read(source, {3, 13}) == 4
    assert lines_to_read(source, set()) == 0


@pytest.mark.agents
def test_all_that_is_called_is_listed(called):
    path, skipped = listed()
    assert path[0] == "training/loop.py"
    for file in path:
        assert called.get(file), f"{file} is on the path, but nothing in it is called"
    for entry in skipped:
        assert any(file.startswith(entry) for file in called), f"{entry} is listed for nothing"
    known = {file for file in called if file in path or file.startswith(tuple(skipped))}
    assert set(called) - known == set()


@pytest.mark.agents
def test_the_path_is_short(called):
    path, _ = listed()
    counts = {file: lines_to_read((SOURCE / file).read_text(), called[file]) for file in path}
    assert len(path) <= MOST_FILES
    assert sum(counts.values()) <= MOST_LINES, counts
