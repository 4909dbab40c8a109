"""No two places in `src/` repeat many lines: logic that is needed twice is a function."""

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Mapping

from tests.contracts.sources import PACKAGE, SOURCES, code_lines, read

MOST_SHARED = 11  # consecutive lines of code
PUNCTUATION = set("()[]{},: ")

# Pairs of files that still repeat more; an entry that is no longer needed fails.
KNOWN: set[tuple[str, str]] = set()

Place = tuple[str, int]  # a file, and the index of a line among its lines that count


def counted_lines(source: str) -> list[tuple[int, str]]:
    """Return (number, text) of the lines that count: code, but no imports or lone brackets."""
    imports = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return [
        (line, text)
        for line, text in code_lines(source).items()
        if line not in imports and not set(text) <= PUNCTUATION
    ]


def find_duplicates(sources: Mapping[str, str], length: int) -> list[str]:
    """Return the pairs of places that share `length` or more consecutive lines, the longest run
    of each pair of files once per place."""
    files = {name: counted_lines(source) for name, source in sources.items()}
    places: dict[tuple[str, ...], list[Place]] = defaultdict(list)
    for name, lines in files.items():
        for start in range(len(lines) - length + 1):
            window = tuple(text for _, text in lines[start : start + length])
            places[window].append((name, start))
    pairs = {pair for found in places.values() for pair in itertools.combinations(sorted(found), 2)}
    described = []
    for (one, first), (other, second) in sorted(pairs):
        if one == other and second - first < length:
            continue  # a window that overlaps itself
        if ((one, first - 1), (other, second - 1)) in pairs:
            continue  # the rest of a run that has been described
        shared = length
        while ((one, first + shared - length + 1), (other, second + shared - length + 1)) in pairs:
            shared += 1
        here, there = files[one][first][0], files[other][second][0]
        described.append(f"{shared} lines: {one}:{here} and {other}:{there}")
    return described


def test_a_repetition_is_found():
    block = "".join(f"x{index} = f({index})\n" for index in range(5))
    sources = {
        "a.py": f"import a\n\n{block}y = 1\n",
        "b.py": f'"""Words."""\nz = 2\n{block.replace("3)", "3)  # why")}'.replace("x4", "\n\nx4"),
        "c.py": block.replace("x2", "other"),
    }
    assert find_duplicates(sources, 5) == ["5 lines: a.py:3 and b.py:3"]
    assert find_duplicates(sources, 4) == ["5 lines: a.py:3 and b.py:3"]
    assert find_duplicates(sources, 6) == []
    assert find_duplicates({"d.py": block + "pass\n" + block}, 5) == ["5 lines: d.py:1 and d.py:7"]


def test_nothing_is_written_twice():
    sources = {path.relative_to(PACKAGE).as_posix(): read(path) for path in SOURCES}
    found = find_duplicates(sources, MOST_SHARED + 1)
    pairs = {tuple(re.findall(r"[\w/]+\.py", line)): line for line in found}
    assert [line for pair, line in pairs.items() if pair not in KNOWN] == []
    assert KNOWN - pairs.keys() == set(), "remove them from KNOWN"
