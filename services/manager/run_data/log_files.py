"""The logs of a run's processes: which there are, their ends, and what follows."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trimaran.errors import NotFoundError
from trimaran.run.launchers import LOG_NAME

LONGEST_LINE = 4000
"""Characters; the rest of a longer line is left out."""
CHUNK = 1 << 16
MOST_BYTES = 1 << 20
"""That one answer holds."""
NAME = re.compile(r"[a-z0-9-]{1,64}")
SECRETS = (
    # Only from a word's beginning: else a line of one word takes time with its length's square.
    (re.compile(r"((?<!\w)\w+://[^\s:/@]*):[^\s/@]+@"), r"\1:***@"),
    (
        re.compile(r"(?i)(bearer\s+|(?:token|password|secret|api_key)\s*[=:]\s*)[^\s,;'\"]+"),
        r"\1***",
    ),
)
"""What a library may have written, and what stands there instead."""


def list_processes(folder: Path) -> list[str]:
    """Those that have a log."""
    logs = folder / "logs"
    names = [path.stem for path in logs.glob("*.log")] if logs.is_dir() else []
    return sorted(name for name in names if NAME.fullmatch(name))


def last_words(folder: Path, count: int = 5) -> str:
    """The launcher's last lines in one; empty where it has written nothing."""
    path = folder / "logs" / LOG_NAME
    if not path.is_file():
        return ""
    lines, _ = LogFile(path).tail(count)
    return " | ".join(line.strip() for line in lines if line.strip())


class LogLines(NamedTuple):
    """Whole lines of a log."""

    lines: list[str]
    position: int
    """Where the next one begins, in bytes."""


class LogFile:
    """One log, read from its end.

    Example:
        lines, position = LogFile.of(folder, "rollout-0").tail(100)
    """

    def __init__(self, path: Path, secrets: Sequence[str] = ()) -> None:
        """`secrets`: words that no line shows."""
        self._path, self._secrets = path, [*filter(None, secrets)]

    @classmethod
    def of(cls, folder: Path, process: str, secrets: Sequence[str] = ()) -> LogFile:
        """`process`: "" is the launcher. Raises NotFoundError."""
        name = process or Path(LOG_NAME).stem
        if name not in (known := list_processes(folder)):
            listed = ", ".join(known) or "none yet"
            raise NotFoundError(f"process {name!r}: has no log here; those that have: {listed}")
        return cls(folder / "logs" / f"{name}.log", secrets)

    def tail(self, count: int) -> LogLines:
        """The last ones."""
        with self._open() as file:
            end = file.seek(0, os.SEEK_END)
            start, data = end, b""
            while start and data.count(b"\n") <= count and len(data) < MOST_BYTES:
                step = min(CHUNK, start)
                start -= step
                file.seek(start)
                data = file.read(step) + data
        whole, _, rest = data.rpartition(b"\n")
        lines = self._lines(whole) if whole or data else []
        return LogLines(lines[-count:], end - len(rest))

    def after(self, position: int) -> LogLines:
        """Those behind `position`."""
        with self._open() as file:
            if file.seek(0, os.SEEK_END) < position:  # it was emptied
                position = 0
            file.seek(position)
            data = file.read(MOST_BYTES)
        whole, newline, _ = data.rpartition(b"\n")
        if newline:
            return LogLines(self._lines(whole), position + len(whole) + 1)
        if len(data) == MOST_BYTES:  # one line, longer than all that we show
            return LogLines(self._lines(data), position + len(data))
        return LogLines([], position)

    def _open(self):
        return os.fdopen(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb")

    def _lines(self, data: bytes) -> list[str]:
        return [self._clean(line) for line in data.decode(errors="replace").split("\n")]

    def _clean(self, line: str) -> str:
        line = line.rstrip("\r")
        for secret in self._secrets:
            line = line.replace(secret, "***")
        line = line[:LONGEST_LINE]
        for pattern, instead in SECRETS:
            line = pattern.sub(instead, line)
        return line
