from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.extending.recipes import RECIPES, Recipe


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Recipe]]:
    """follow("A loss") installs that recipe's package, for this process and its children."""
    folder = tmp_path / "packages"
    folder.mkdir()
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv(
        "PYTHONPATH", f"{folder}{os.pathsep}{inherited}" if inherited else f"{folder}"
    )

    def install_one(title: str) -> Recipe:
        RECIPES[title].install(folder)
        # Once more for each: what is installed is looked up again when sys.path has changed.
        monkeypatch.syspath_prepend(folder)
        return RECIPES[title]

    yield install_one
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]
