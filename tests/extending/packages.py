"""Packages from outside the tree, as an installer leaves them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

EntryPoints = Mapping[str, Mapping[str, str]]
"""Group -> name -> "module:attribute"."""


def install(
    folder: Path,
    entry_points: EntryPoints,
    files: Mapping[str, str] | None = None,
    name: str = "toy",
) -> Path:
    """`folder` then holds version 0.1 of the package; it must stand in sys.path or PYTHONPATH."""
    for path, text in (files or {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    # As installers escape it: what stands before the first "-" is taken for the name.
    information = folder / f"{name.replace('-', '_')}-0.1.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    lines = [
        line
        for group, points in entry_points.items()
        for line in (f"[{group}]", *(f"{key} = {place}" for key, place in points.items()))
    ]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder
