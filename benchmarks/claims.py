"""Check the numbers of the pages that people edit: claims.toml says which function computes each.

A claim is a part of a page as a template (`measured/text.py`); the page must contain the rendered
text. In the sections that claims.toml names, every number must be computed by a claim or stand in
one of the listed phrases. White space and line breaks do not count.
"""

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from measured import text

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
NUMBER = re.compile(r"(?<!\w)\d(?:[\d.,]*\d)?")
LINK_TARGET = re.compile(r"\]\([^)]*\)")
COVERED = "□"


class Page(NamedTuple):
    """What claims.toml says of a page."""

    path: str
    claims: tuple[str, ...]
    sections: tuple[str, ...] = ()  # headings; every number below them needs a claim or a phrase
    phrases: tuple[str, ...] = ()  # with numbers that no CSV holds


def pages(table: Path = HERE / "claims.toml") -> list[Page]:
    """Read the table of claims."""
    found = tomllib.loads(table.read_text(encoding="utf-8"))["page"]
    return [Page(each.pop("path"), **{k: tuple(v) for k, v in each.items()}) for each in found]


def problems(page: Page) -> list[str]:
    """Return a line for each claim that the page does not contain, else each number without one."""
    content = (REPOSITORY / page.path).read_text(encoding="utf-8")
    return missing_claims(page, content) or uncovered_numbers(page, content)


def missing_claims(page: Page, content: str) -> list[str]:
    """Return a line for each claim whose rendered text the page does not contain."""
    rendered = (" ".join(text.render(claim).split()) for claim in page.claims)
    folded = " ".join(content.split())
    return [
        f"{page.path} does not contain the following text of claims.toml: {claim}"
        for claim in rendered
        if claim not in folded
    ]


def uncovered_numbers(page: Page, content: str) -> list[str]:
    """Return a line for each number of the sections without a claim and without a phrase."""
    found = []
    for heading in page.sections:
        rest = " ".join(section(content, heading).split())
        for claim in page.claims:
            rest = cover(rest, claim)
        for phrase in page.phrases:
            rest = rest.replace(phrase, NUMBER.sub(COVERED, phrase))
        rest = LINK_TARGET.sub("]", rest)
        found += [
            f"{page.path}, {heading}: no claim computes {number.group()} in "
            f"{rest[max(0, number.start() - 40) : number.end() + 20]!r}"
            for number in NUMBER.finditer(rest)
        ]
    return found


def section(content: str, heading: str) -> str:
    """Return the text from a heading to the next one of the same or a higher level."""
    lines = iter(content.splitlines())
    opening = next((line for line in lines if line.lstrip("# ") == heading and line[0] == "#"), "")
    if not opening:
        raise KeyError(f"no heading {heading!r}")
    depth, inside = len(opening.split()[0]), []
    for line in lines:
        if re.match(rf"#{{1,{depth}}} ", line):
            break
        inside.append(line)
    return "\n".join(inside)


def cover(content: str, claim: str) -> str:
    """Replace the digits that the claim computes, wherever its text occurs.

    The numbers that its template holds stay, so a claim cannot state a number of its own.
    """
    pieces = [piece._replace(text=" ".join(piece.text.split())) for piece in text.pieces(claim)]
    # Spaces around a placeholder are folded as those of the page are.
    whole = " ".join(text.render(claim).split())
    masked = re.sub(r"\d", COVERED, whole)
    place = 0
    for piece in pieces:
        place = whole.index(piece.text, place)
        end = place + len(piece.text)
        if not piece.computed:
            masked = masked[:place] + piece.text + masked[end:]
        place = end
    return content.replace(whole, masked)
