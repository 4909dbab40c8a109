"""Build the pages that `docs/` does not hold: `make docs` calls these hooks of MkDocs.

- Pages and files elsewhere in the repository that a page links to (the README of an algorithm, the
  changelog, an example) become pages of the site, and the links lead there.
- Notebooks become pages with their outputs. The gallery shows the source of every example.
- Equations become MathML, so that a page needs no script and no network.
- The reference of the command line is made from the parsers of the commands.
"""

import argparse
import importlib
import json
import posixpath
import re
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path
from textwrap import indent
from typing import Any

from equations import split_line, to_mathml
from make_notebooks import to_markdown
from mkdocs.structure.files import File, Files, InclusionLevel

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = "docs"
# Pages outside of docs/ that are always part of the site -> their places.
PLACES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
          "SECURITY.md": "security.md"}  # fmt: skip
ALGORITHM = re.compile(r"src/understudy/algorithms/(\w+)/README\.md")
CODE = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml"}
GALLERY = "gallery.md"
IMAGES = (".png", ".svg", ".gif")
SHORT_NAME = 32  # characters of code that stay on one line in the first column of a table
FRONT_MATTER = "---\nhide: [navigation, toc]\nsearch: {exclude: true}\n---\n"  # of code

EXAMPLE = re.compile(r"^- \[(\w+\.py)\]\(\S+\): (.+(?:\n  .+)*)$", re.M)  # a line of the gallery

_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
_COMMENT = re.compile(r"^<!--(?! command line ).*?-->$", re.M | re.S)

_sources: dict[str, str] = {}  # page of the site -> path in the repository, if not docs/<page>


def outside_pages() -> list[str]:
    """Return the pages outside of docs/ that the site always has."""
    readmes = (REPOSITORY / "src" / "understudy" / "algorithms").glob("*/README.md")
    paths = [*readmes, *(REPOSITORY / "notebooks").glob("*.ipynb")]
    return [*PLACES, *sorted(path.relative_to(REPOSITORY).as_posix() for path in paths)]


def place_of(path: str) -> str:
    """Return the place in the site of a path in the repository."""
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    if algorithm := ALGORITHM.fullmatch(path):
        return f"algorithms/{algorithm[1]}.md"
    if (REPOSITORY / path).is_dir():
        return f"source/{path}/index.md"
    if path == "README.md":
        return "index.md"  # the home page takes its place
    if path in PLACES or path.endswith(IMAGES):
        return PLACES.get(path, path)
    if path.endswith(".md"):
        return f"{path.removesuffix('/README.md').removesuffix('.md')}.md"
    if path.endswith(".ipynb"):
        return f"{path.removesuffix('.ipynb')}.md"
    return f"source/{path}.md" if Path(path).suffix in CODE else f"source/{path}"


def target_of(link: str, source: str) -> str | None:
    """Return the path in the repository that a link of the page `source` names; None for links to
    other sites and within the page. A directory with a README is its README."""
    file = link.partition("#")[0]
    if "://" in link or link.startswith("mailto:") or not file:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
    return f"{path}/README.md" if (REPOSITORY / path / "README.md").is_file() else path


def outside_code(markdown: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a page, and whether each is text, not a block of code."""
    for part in _FENCE.split(markdown):
        yield part, not part.startswith("```")


def links_in(markdown: str, source: str) -> list[str]:
    """Return the paths in the repository that a page links to."""
    links = [link for part, text in outside_code(markdown) if text for link in _LINK.findall(part)]
    return [path for path in (target_of(link, source) for link in links) if path]


def with_links(markdown: str, source: str, place: str) -> str:
    """Let the links of the page at `place` lead to places of the site."""
    here = posixpath.dirname(place)

    def moved(link: re.Match[str]) -> str:
        target = target_of(link[0], source)
        if target is None or (source.startswith(DOCS) and target.startswith(DOCS)):
            return link[0]
        heading = link[0].partition("#")[2]
        moved_to = posixpath.relpath(place_of(target), here or ".")
        return f"{moved_to}#{heading}" if heading else moved_to

    parts = outside_code(markdown)
    return "".join(_LINK.sub(moved, part) if text else part for part, text in parts)


def files_in(directory: str) -> list[str]:
    """Return the files of a directory, without what Python stores there."""
    paths = sorted(path for path in (REPOSITORY / directory).rglob("*") if path.is_file())
    files = [path.relative_to(REPOSITORY).as_posix() for path in paths]
    return [file for file in files if "/__pycache__/" not in file]


def content_of(path: str) -> str:
    """Return the page for a path outside of docs/: a page, a file of code or a directory."""
    whole = REPOSITORY / path
    if whole.is_dir():
        files = [f"- [{file}]({posixpath.relpath(file, path)})" for file in files_in(path)]
        return f"{FRONT_MATTER}# {path}\n\n" + "\n".join(files) + "\n"
    text = whole.read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    if path.endswith(".ipynb"):
        return to_markdown(json.loads(text))
    title, language = f"# {path}\n", CODE[whole.suffix]
    return f'{FRONT_MATTER}{title}\n``````{language} linenums="1"\n{text}``````\n'


def on_files(files: Files, config: Any) -> Files:
    """Add everything outside of docs/ that a page of the site links to."""
    _sources.clear()
    pages = [f"{DOCS}/{file.src_uri}" for file in files.documentation_pages()]
    waiting = [*outside_pages(), *pages]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        place, is_page = place_of(path), place_of(path).endswith(".md")
        if path == "README.md" or not (REPOSITORY / path).exists():
            continue  # the check of links reports what does not exist
        if not path.startswith(f"{DOCS}/"):
            content = {"content": content_of(path)} if is_page else {}
            where = {} if is_page else {"abs_src_path": str(REPOSITORY / path)}
            file = File.generated(config, place, **content, **where)
            always = path in outside_pages()  # the others need no entry in the navigation
            file.inclusion = InclusionLevel.INCLUDED if always else InclusionLevel.NOT_IN_NAV
            files.append(file)
            _sources[place] = path
        if is_page:
            text = content_of(path)
            found = dict.fromkeys(links_in(text, _folder_page(path)))
            linked = [link for link in found if link not in seen]
            seen.update(linked)
            waiting += [link for link in linked if not link.startswith(f"{DOCS}/")]
    return files


def _folder_page(path: str) -> str:
    """Return the path that the links of a page are relative to."""
    return f"{path}/index.md" if (REPOSITORY / path).is_dir() else path


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Move the links of a page, and fill in what is made from the code."""
    source = _sources.get(page.file.src_uri, f"{DOCS}/{page.file.src_uri}")
    if "<!-- command line -->" in markdown:
        markdown = markdown.replace("<!-- command line -->", command_line())
    markdown = "".join(
        _COMMENT.sub("\n", part) if text else part for part, text in outside_code(markdown)
    )
    markdown = re.sub(r"^::: (understudy\.[\w.]+)$(?!\n    options)", _named, markdown, flags=re.M)
    markdown = with_links(markdown, _folder_page(source), page.file.src_uri)
    return EXAMPLE.sub(_folded, markdown) if page.file.src_uri == GALLERY else markdown


def _folded(line: re.Match[str]) -> str:
    """Replace a line of the gallery by one that unfolds the source of the example."""
    source = (REPOSITORY / "examples" / line[1]).read_text(encoding="utf-8")
    title = f"**{line[1]}** {escape(' '.join(line[2].split()))}"
    return f'??? example "{title}"\n\n' + indent(f"``````python\n{source}``````\n", " " * 4)


def _named(directive: re.Match[str]) -> str:
    """Head the reference of a name with the name as programs write it. Settings are listed once:
    as attributes, not as arguments as well."""
    name = re.sub(r"^understudy\.(?=\w+$)", "us.", directive[1])
    options = f"{directive[0]}\n    options:\n      heading: {name}"
    settings = "\n      merge_init_into_class: false"
    return options + settings if name.endswith("Config") else options


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Replace equations by MathML, and let long names break in tables."""

    def written(equation: re.Match[str]) -> str:
        tex, display = unescape(equation[2]), equation[1] == "div"
        try:
            parts = [to_mathml(part, True) for part in split_line(tex)] if display else []
            whole = f'<div class="equation">{"".join(parts)}</div>'
            return whole if display else to_mathml(tex)
        except ValueError as error:
            raise ValueError(f"{page.file.src_uri}: {error}") from None

    pattern = r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>'
    return breakable(re.sub(pattern, written, html, flags=re.S))


def breakable(html: str) -> str:
    """Let names in the code of tables break after a dot, a slash or an underscore, but neither
    assignments nor, in the first column, short names."""

    def broken(code: re.Match[str]) -> str:
        return re.sub(r"(?<=\w)([._/])(?=[^\W\d])", r"\1<wbr>", code[0])

    def cell(whole: re.Match[str]) -> str:
        fewest = SHORT_NAME + 1 if whole[1] else 1
        return re.sub(rf"(?<=<code>)[^<=]{{{fewest},}}(?=<)", broken, whole[0])

    return re.sub(r"(<tr>\n)?<td\b.*?</td>", cell, html, flags=re.S)


class _MarkdownHelp(argparse.HelpFormatter):
    """Write the help of a command as Markdown: a table for each group of flags."""

    def __init__(self, prog: str):
        super().__init__(prog, width=10_000)
        self.parts: list[str] = []

    def start_section(self, heading: str | None) -> None:
        self._heading = heading

    def end_section(self) -> None:
        pass

    def add_text(self, text: str | None) -> None:
        if text:
            self.parts.append(" ".join(text.split()))

    def add_usage(self, usage: str | None, *rest: Any, **more: Any) -> None:
        self.parts.append(f"```\n{usage}\n```")

    def add_arguments(self, actions: Any) -> None:
        rows = [row for row in map(row_of, actions) if row]
        if rows:
            title = str(self._heading).capitalize()
            self.parts.append("\n".join([f"**{title}**\n", "| | |", "|---|---|", *rows]))

    def format_help(self) -> str:
        return "\n\n".join(self.parts) + "\n"


def row_of(action: argparse.Action) -> str:
    """Return the row of a flag or argument in a table; "" for --help."""
    if action.dest == "help":
        return ""
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
    value = "" if action.nargs == 0 else f" {action.metavar or choices or action.dest.upper()}"
    names = ", ".join(action.option_strings) or value.strip()
    shown = (names + value if action.option_strings else names).replace("|", "\\|")
    help_text = (action.help or "").replace("%%", "%").replace("|", "\\|")
    return f"| `{shown}` | {help_text} |"


def help_of(name: str, *arguments: str) -> list[str]:
    """Return the help of a command with these arguments, in parts."""
    from understudy.cli import MODULES
    from understudy.cli.parsing import Parser

    command = importlib.import_module(f"understudy.cli.{MODULES.get(name, name)}")
    parser = Parser(command.USAGE, command.__doc__)
    command.add_flags(parser, list(arguments))
    parser.formatter_class = _MarkdownHelp
    return parser.format_help().split("\n\n**")


def settings_of_algorithms() -> str:
    """Return the flags of all algorithms: a table with the algorithms of each row."""
    from understudy.algorithms import available

    rows: dict[tuple[str, str], list[str]] = {}
    for algorithm in available():
        for part in help_of("train", algorithm):
            if part.startswith("Settings of "):
                for row in re.findall(r"^\| `--.*$", part, re.M):
                    flag, help_text = row.strip("| ").split(" | ", 1)
                    rows.setdefault((flag, help_text), []).append(algorithm.upper())
    lines = [
        f"| {flag} | {help_text} | {', '.join(names)} |"
        for (flag, help_text), names in sorted(rows.items())
    ]
    return "\n".join(["| | | algorithms |", "|---|---|---|", *lines])


def command_line() -> str:
    """Return the reference of all commands."""
    from understudy.cli import COMMANDS

    parts = []
    for name in COMMANDS:
        shared = name in ("train", "sweep")  # their settings are in one table
        sections = [
            part for part in help_of(name) if not (shared and part.startswith("Settings of "))
        ]
        parts.append(f"## understudy {name}\n\n" + "\n\n**".join(sections))
    title = "## Settings of algorithms\n\nFlags of `understudy train` and `understudy sweep`.\n\n"
    return "\n\n".join([*parts, title + settings_of_algorithms()])
