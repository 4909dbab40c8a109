"""One concept, one word: identifiers defined in `src/` use the terms of the field.

docs/design.md has the glossary. A word that is banned here may stand in an identifier only if the
list of exceptions names that identifier; an exception that is no longer needed must go.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

import understudy

SOURCE = Path(understudy.__file__).parent
# Banned word -> what to say instead.
BANNED = {
    "appetite": "needs",
    "borrowed": "shared encoder",
    "bury": "replace",
    "cadence": "update schedule",
    "crew": "worker pool",
    "embody": "construct",
    "feeding": "replay buffer",
    "film": "frame replay buffer",
    "fragment": "chunk",
    "hire": "start",
    "house": "a plain word",
    "keeper": "run directory, gradient worker",
    "keeping": "replay buffer",
    "ledger": "counter",
    "lend": "shared encoder",
    "life": "attempt",
    "lives": "attempts",
    "member": "seed",
    "members": "seeds",
    "moments": "statistics, optimizer state",
    "movement": "schedule",
    "parcel": "chunk",
    "performance": "episode chunks",
    "playhouse": "episode runner",
    "post": "slot",
    "programme": "episode plan",
    "ring": "replay buffer",
    "river": "a plain word",
    "room": "free bytes",
    "rooms": "a plain word",
    "senses": "encoder",
    "sight": "encoder",
    "speak": "set",
    "spoken": "set",
    "spreading": "device sharding",
    "stage": "episode runner",
    "told": "logged, reported",
    "wishes": "settings",
}
# Spelling of US English, as in Gymnasium.
BRITISH = re.compile(
    r"(normali|initiali|optimi|prioriti|penali|summari|synchroni|standardi)s(e|ed|er|ing|ation)"
    r"|colour|behaviour|neighbour|centre|grey"
)
EXCEPTIONS = {
    # Other meanings of the word.
    "member", "members",  # of an ensemble, and of a sweep
    "__post_init__",
    "life_loss", "life_lost", "_lives", "_between_lives",  # Atari
    "film",  # a video
}  # fmt: skip


def defined() -> dict[str, set[str]]:
    """Every identifier that is defined in the package, and the files that define it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.arg):
                names = [node.arg]
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names = [node.id]
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names = [node.attr]
            for name in names:
                found[name].add(str(path.relative_to(SOURCE)))
    return found


def words_of(identifier: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)]


def is_wrong(identifier: str) -> bool:
    return bool(BANNED.keys() & set(words_of(identifier)) or BRITISH.search(identifier.lower()))


def test_words_of_an_identifier():
    assert words_of("_HostPlayhouse") == ["host", "playhouse"]
    assert words_of("over_members") == ["over", "members"]
    assert words_of("MEMBERS") == ["members"]
    assert (
        is_wrong("open_playhouse") and is_wrong("normalise_rewards") and not is_wrong("optimistic")
    )


def test_no_banned_words():
    wrong = {name: files for name, files in defined().items() if is_wrong(name)}
    for name in EXCEPTIONS & wrong.keys():
        del wrong[name]
    assert not wrong, f"say instead: {BANNED}"


def test_exceptions_are_needed():
    assert EXCEPTIONS - defined().keys() == set()
