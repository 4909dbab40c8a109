"""Write docs/benchmarks.md: the template with the numbers of benchmarks/results.

    python benchmarks/page.py           # write the page
    python benchmarks/page.py --check   # exit with 1 if the page differs; also checks claims.toml

Edit page_template.md, never the page. The functions of `measured` compute the numbers.
"""

import argparse
import re
import textwrap
from pathlib import Path

import claims
from measured import text

HERE = Path(__file__).resolve().parent
TEMPLATE = HERE / "page_template.md"
PAGE = HERE.parent / "docs" / "benchmarks.md"
WIDTH = 100
NOTE = "<!-- python benchmarks/page.py writes this page from benchmarks/page_template.md. -->\n\n"


def page() -> str:
    """Return the page that follows from the results."""
    blocks = text.render(TEMPLATE.read_text(encoding="utf-8")).split("\n\n")
    return NOTE + "\n\n".join(map(wrap, blocks)).rstrip() + "\n"


def wrap(block: str) -> str:
    """Fill the lines of a paragraph or of a list; leave all other blocks as they are."""
    if block.lstrip()[:1] in "|#!<" or block.startswith("  "):
        return block
    items = re.split(r"\n(?=- )", block)
    return "\n".join(
        textwrap.fill(
            " ".join(item.split()),
            WIDTH,
            subsequent_indent="  " if item.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for item in items
    )


def problems() -> list[str]:
    """Return a line for everything that does not follow from the results."""
    found = [problem for each in claims.pages() for problem in claims.problems(each)]
    if PAGE.read_text(encoding="utf-8") != page():
        found.append(f"{PAGE.name} differs from its template: run python benchmarks/page.py")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    if parser.parse_args().check:
        raise SystemExit("\n".join(problems()) or 0)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
