"""expert-loads.jsonl: how many tokens each expert got, a line a step, of models with experts.

    {"step":3,"layers":{"0":[412,388,…],"1":[…]}}

The file has one writer at a time. A model of 94 layers with 128 experts writes 87 kB a step.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from pathlib import Path

from trimaran.errors import InputError
from trimaran.host.append_file import AppendFile
from trimaran.types import ExpertLoads

EXPERT_LOADS_NAME = "expert-loads.jsonl"
"""In the controller's run folder."""
HEAD = b'{"step":'
"""The beginning of each line, before the step and a comma."""


class ExpertLoadsWriter:
    """Makes the file with its first line: there is none for a model without experts.

    Example:
        writer = ExpertLoadsWriter(run_folder)
        writer.write(1, answer.expert_loads)
        writer.close()
    """

    def __init__(self, run_folder: Path) -> None:
        self._path = run_folder / EXPERT_LOADS_NAME
        self._file: AppendFile | None = None
        self._newest = 0

    def write(self, step: int, layers: Sequence[ExpertLoads]) -> None:
        """Nothing without layers, nor of a step that has a line or comes before one that has: a run that was
        resumed trains steps again. On a full disk the line waits in memory."""
        if not layers:
            return
        if self._file is None:
            self._file = AppendFile(self._path)
            self._file.drop_torn_line()
            line = _newest_line(self._path)
            self._newest = _step_of(self._path, line) if line else 0
        if step > self._newest:
            row = {"step": step, "layers": {one.layer: one.tokens_E for one in layers}}
            self._file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
            self._newest = step

    def flush(self) -> None:
        """Raises OSError where there is no room yet for what has waited."""
        if self._file:
            self._file.flush()

    def close(self) -> None:
        if self._file:
            self._file.close()


def _newest_line(path: Path) -> bytes:
    """The last whole one; empty without any. Reads the file's end alone."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return b""
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            end = max(data.rfind(b"\n"), 0)
            return data[data.rfind(b"\n", 0, end) + 1 : end]


def _step_of(path: Path, line: bytes) -> int:
    number, comma, _ = line.removeprefix(HEAD).partition(b",")
    if not (line.startswith(HEAD) and comma and number.isdigit()):
        raise InputError(f"{path}: a line is damaged ({line[:32]!r}); remove it and start again")
    return int(number)
