"""The recipes of docs/extending.md: their code, as it stands there.

A block of code begins with a comment: the path of the file that it is, or "path, where" for a part of one.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.extending.packages import install

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"^( *)```\w+\n\1# ([^\n,]+)(, [^\n]+)?\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Recipe:
    title: str
    text: str
    files: dict[str, str]
    """Path -> the whole file."""
    parts: dict[str, str]
    """Path of a file of this tree -> what is to be added to it."""

    @property
    def entry_points(self) -> dict[str, dict[str, str]]:
        return tomllib.loads(self.files["pyproject.toml"])["project"]["entry-points"]

    @property
    def run(self) -> dict[str, Any]:
        """What its run.yaml says."""
        return yaml.safe_load(self.files.get("run.yaml", "{}"))

    def install(self, folder: Path) -> Path:
        """As a package, whose name the title makes."""
        code = {path: text for path, text in self.files.items() if path.endswith(".py")}
        return install(folder, self.entry_points, code, self.title.replace(" ", "-"))


def read_recipes(text: str) -> dict[str, Recipe]:
    """By title, in their order."""
    found: dict[str, Recipe] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        files: dict[str, str] = {}
        parts: dict[str, str] = {}
        for _, path, where, code in BLOCK.findall(section):
            (parts if where else files)[path] = textwrap.dedent(code)
        found[title] = Recipe(title, section, files, parts)
    return found


RECIPES = read_recipes(DOCUMENT.read_text(encoding="utf-8"))
