"""docs/faults.md is made from the tests: `python tests/contracts/test_faults.py` writes it."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "faults.md"

FAULTS = {
    "Environments": {
        1: "`step()` raises",
        2: "a worker process dies",
        3: "`reset()` never works",
        4: "`step()` hangs",
        5: "a constructor fails in one worker of many",
        6: "an observation or a reward is not finite",
        7: "numbers are finite but absurd",
        8: "observations change shape or dtype",
        9: "the policy gives NaN",
        10: "actions and their bounds",
        11: "a space that the algorithm cannot use",
        12: "the ways in which an episode can end",
        13: "an array is returned twice, an action changed",
        14: "an episode never ends",
    },
    "Settings": {
        15: "a field is misspelled",
        16: "values are out of range",
        17: "a value has the wrong type",
        18: "the same seed, another seed",
        19: "the replay buffer does not fit into memory",
    },
    "Numbers": {
        20: "an update is not finite",
        21: "weights are not finite",
        22: "actions at their bounds",
        23: "the accelerator is out of memory",
    },
    "Checkpoints": {
        24: "killed while saving",
        25: "the disk is full",
        26: "the directory cannot be written, or is gone",
        27: "a file is damaged",
        28: "a file is malicious",
        29: "a checkpoint of something else",
        30: "stopped and resumed",
        31: "completeness of the training state",
        32: "the experience is missing",
        33: "two runs in one directory",
    },
    "Processes": {
        34: "SIGINT and SIGTERM",
        35: "a logger or tracker is down",
        36: "a callback raises",
        37: "processes and files after an exit",
        38: "no terminal, no stdin, a notebook, spawn and fork",
    },
    "Clusters": {
        39: "a collector is killed",
        40: "all collectors are gone",
        41: "the learner's process is killed",
        42: "a process does not answer, and later does",
        43: "the object store is full, or loses something",
        44: "a policy is too old",
        45: "Ray is missing, too old or unreachable",
    },
    "Quality-diversity": {
        46: "a fitness or a descriptor is not finite",
        47: "a descriptor is out of bounds",
        48: "an evaluation fails, or its worker dies",
        49: "contents of a repertoire",
        50: "a repertoire of something else",
    },
    "Hostile and broken files": {
        51: "a checkpoint names a module to import",
        52: "a checkpoint names a Ray to join",
        53: "a file of a run directory is a link",
        54: "killed while a checkpoint is removed",
        55: "a policy file requests more memory than its size justifies",
        56: "a manifest is not a file, or has wrong content",
        57: "files with random changes",
        58: "SIGINT while a command starts",
        59: "flags or rewards of the wrong type",
        60: "an environment's `close()` raises, or its `step()` exits",
    },
}
INTRODUCTION = """# Faults

This page lists faults, their outcomes and the tests that check them. It is made from the markers of
the tests (`python tests/contracts/test_faults.py`); a fault without a test fails the suite. Long
tests run with `make test-slow`, the others with `make test`.
"""


def marks(path: Path) -> Iterator[tuple[int, str, str]]:
    """Number, outcome and test of every `@pytest.mark.fault` in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            if call and isinstance(call.func, ast.Attribute) and call.func.attr == "fault":
                number, outcome = (ast.literal_eval(argument) for argument in call.args)
                yield number, outcome, f"{path.relative_to(REPOSITORY)}::{node.name}"


def found() -> dict[int, list[tuple[str, str]]]:
    tests = defaultdict(list)
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        for number, outcome, test in marks(path):
            tests[number].append((outcome, test))
    return tests


def page() -> str:
    tests, lines = found(), [INTRODUCTION]
    for title, faults in FAULTS.items():
        lines += [f"## {title}\n", "| | fault | outcome | test |", "|---|---|---|---|"]
        for number, fault in faults.items():
            shown, told = f"{number} | {fault}", None
            for outcome, test in tests[number]:
                file, name = test.split("::")
                where = f"[`{name}`](../{file})"
                lines.append(f"| {shown} | {outcome if outcome != told else ''} | {where} |")
                shown, told = " | ", outcome
        lines.append("")
    return "\n".join(lines)


def test_every_fault_has_a_test():
    known = {number for faults in FAULTS.values() for number in faults}
    assert known == {*range(1, 61)}
    assert found().keys() == known
    for number, tests in found().items():
        assert any(test.startswith("tests/faults/") for _, test in tests), number


def test_the_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
