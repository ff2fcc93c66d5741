"""Which checkpoints a folder holds, by their names: `checkpoints/step-00010/`, with a `state.json` once whole.

What needs no tensor library, so that a launcher without one can look before it starts a trainer.
"""

from __future__ import annotations

import re
from pathlib import Path

from trimaran.errors import InputError

FOLDER = "checkpoints"
STATE = "state.json"
PREFIX = "step-"
TRIED = ".can-write-"
"""Before the names of what a start writes to try the folder out."""


def folder_of(run_folder: Path, step: int) -> Path:
    return run_folder / FOLDER / f"{PREFIX}{step:05d}"


def newest(run_folder: Path) -> Path | None:
    found = by_step(run_folder)
    return found[-1] if found else None


def find(path: Path, key: str) -> Path:
    """`path`, or the newest checkpoint that is in it. `key`: for errors. Raises InputError."""
    folder = path if (path / STATE).is_file() else newest(path)
    if folder is None:
        raise InputError(
            f"{key}: {path} is no checkpoint and holds none; name a folder such as"
            f" RUN/{FOLDER}/{PREFIX}00010, in which there is a {STATE}"
        )
    return folder


def by_step(run_folder: Path) -> list[Path]:
    """Those that are whole, the oldest first."""
    whole = [path for path in named(run_folder, "") if (path / STATE).is_file()]
    return sorted(whole, key=step_of)


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix(PREFIX))


def named(run_folder: Path, suffix: str) -> list[Path]:
    """Folders step-<number><suffix>; others in there are not ours."""
    name = re.compile(rf"{PREFIX}\d+{re.escape(suffix)}")
    return [path for path in (run_folder / FOLDER).glob("*") if name.fullmatch(path.name)]
