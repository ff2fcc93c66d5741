"""What a validation leaves behind: samples/step-<n>.jsonl, a row for each held-out prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from trimaran.ledger.disk import naming_full_disk

KEPT_FILES = 100
"""The first one, to compare with, and the newest."""
KEPT_BYTES = 16 << 30
"""Bytes of them together; the first one and the newest stay all the same."""


class SamplesFile:
    """Takes rows as prompts are answered, and has them in the prompts' order in the end: no more than
    their places wait in memory.

    Example:
        with SamplesFile(run_folder / "samples", step=20) as file:
            file.add(1, {"prompt_id": "p:1"})
            file.add(0, {"prompt_id": "p:0"})
            file.finish()  # samples/step-00020.jsonl: p:0, p:1
    """

    def __init__(self, folder: Path, step: int) -> None:
        """Raises NoRoomError where there is no room for a folder."""
        self.path = folder / f"step-{step:05d}.jsonl"
        self._unordered = self.path.with_suffix(".unordered")
        with naming_full_disk(folder):
            folder.mkdir(exist_ok=True)
            self._file = self._unordered.open("w+b", buffering=0)
        self._places: dict[int, tuple[int, int]] = {}
        """Where each row begins, and its bytes."""
        self._end = 0

    def __enter__(self) -> SamplesFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._unordered.unlink(missing_ok=True)

    def add(self, index: int, row: Mapping[str, Any]) -> None:
        """Raises NoRoomError on a full disk; it may be called again."""
        data = json.dumps(row, ensure_ascii=False).encode() + b"\n"
        with naming_full_disk(self.path):
            self._file.seek(self._end)  # over what a full disk has torn
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        self._places[index] = (self._end, len(data))
        self._end += len(data)

    def finish(self) -> None:
        """The file with all rows takes its name. Raises NoRoomError; it may be called again."""
        partial = self.path.with_suffix(".partial")
        with naming_full_disk(self.path), partial.open("wb") as file:
            for _, (start, size) in sorted(self._places.items()):
                self._file.seek(start)
                file.write(self._file.read(size))
        partial.replace(self.path)


def remove_old(folder: Path) -> None:
    """All but the first file and the newest: KEPT_FILES of them, as far as they are not more than
    KEPT_BYTES."""

    def step(path: Path) -> int:
        return int(path.stem.removeprefix("step-"))

    first, *others = sorted(folder.glob("step-*.jsonl"), key=step)
    taken = first.stat().st_size
    for place, path in enumerate(reversed(others)):
        taken += path.stat().st_size
        if place and (place >= KEPT_FILES - 1 or taken > KEPT_BYTES):
            path.unlink(missing_ok=True)
