"""The library stays small: lines of code of `src/`, of a file, of an algorithm's folder.

Lines of code are lines without blanks, comments and docstrings.
"""

import pytest

from tests.contracts.sources import PACKAGE, SOURCES, code_lines, name_of, read

MOST_LINES_OF_CODE = 22_850
MOST_FILE_LINES = 400  # with blanks, comments and docstrings
USUAL_ALGORITHM_LINES = 350  # of code, in a folder
MOST_ALGORITHM_LINES = {"a2c": 450, "mpo": 450}
ALGORITHMS = sorted((PACKAGE / "algorithms").glob("*/README.md"))


def count(paths) -> int:
    return sum(len(code_lines(read(path))) for path in paths)


def test_code_is_counted():
    source = (
        '"""Words."""\n\ndef used(x):  # a comment\n    """More."""\n    return x\n'
        "\n\n# A comment\nTEXT = '''first\n\nthird'''\n"
    )
    assert code_lines(source) == {
        3: "def used ( x ) :",
        5: "return x",
        9: "TEXT = '''first",
        10: "",
        11: "third'''",
    }


def test_the_package_is_small():
    assert count(SOURCES) <= MOST_LINES_OF_CODE


def test_files_are_short():
    lengths = {name_of(path): len(read(path).splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_FILE_LINES} == {}


@pytest.mark.parametrize("name", [path.parent.name for path in ALGORITHMS])
def test_an_algorithm_is_small(name):
    most = MOST_ALGORITHM_LINES.get(name, USUAL_ALGORITHM_LINES)
    assert count((PACKAGE / "algorithms" / name).glob("*.py")) <= most
