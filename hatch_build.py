"""Write the README for a package index, where links relative to the repository lead nowhere.

They lead to the files of the release, at its tag below `Repository` of `project.urls`. As long as
`pyproject.toml` does not give that address, links become plain text.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


class Readme(MetadataHookInterface):
    """Sets the description of the distribution."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        text = with_absolute_links(text, repository, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, repository: str | None, tag: str) -> str:
    """Let relative links of the README lead to the repository at a tag."""

    def absolute(link: re.Match[str]) -> str:
        picture, words, target = link.groups()
        if "://" in target:
            return link[0]
        if repository is None:
            return words
        path = f"README.md{target}" if target.startswith("#") else target
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/{tag}/{path})"

    return LINK.sub(absolute, text)
