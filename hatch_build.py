"""What the package index shows of the project: its addresses, and the README without links that break there.

All addresses come from `repository` in pyproject.toml, which is empty while the project has no public home.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = r"\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)"  # [text](path), of the repository


def addresses(repository: str) -> dict[str, str]:
    """Returns the links that follow from the repository's address, none if that is empty; ValueError if it is wrong."""
    if not repository:
        return {}
    found = re.fullmatch(r"https://github\.com/([\w.-]+)/([\w.-]+)", repository)
    if not found:
        raise ValueError(f"repository in pyproject.toml must be https://github.com/OWNER/NAME, and is {repository!r}.")
    documentation = f"https://{found[1]}.github.io/{found[2]}/"
    return {"Repository": repository, "Documentation": documentation, "Issues": f"{repository}/issues"}


def long_description(readme: str, repository: str) -> str:
    """Returns the README with links into the repository, or without links and pictures while it has no address."""
    parts = re.split(r"(^```.*?^```$)", readme, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if i % 2 else _prose(part, repository) for i, part in enumerate(parts))


def _prose(text: str, repository: str) -> str:
    text = re.sub(r"^</?div.*>\n", "", text, flags=re.MULTILINE)
    if repository:
        text = re.sub("!" + RELATIVE, rf"![\1]({repository}/raw/HEAD/\2)", text)
        return re.sub(RELATIVE, rf"[\1]({repository}/blob/HEAD/\2)", text)
    text = re.sub("!" + RELATIVE, "", text)
    text = re.sub(r"\s\(" + RELATIVE + r"\)", "", text)  # "(more)" alone says nothing
    return re.sub(r"\n{3,}", "\n\n", re.sub(RELATIVE, r"\1", text))


class ProjectMetadata(MetadataHookInterface):
    """Fills in `readme` and `urls`; hatchling finds it by its base class."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Writes both fields into the project's metadata."""
        repository = self.config["repository"]
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["urls"] = addresses(repository) | self.config["urls"]
        metadata["readme"] = {"content-type": "text/markdown", "text": long_description(readme, repository)}
