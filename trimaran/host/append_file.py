"""Appending to a file on a disk that may be full: what finds no room waits in memory, in order."""

from __future__ import annotations

import errno
import os
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
"""A full disk, and a full quota on it."""


class AppendFile:
    """Each `write` is one write of the system, as long as there is room.

    Example:
        file = AppendFile(Path("rows.jsonl"))
        file.write(b"a row\\n")  # raises nothing on a full disk
        file.flush()  # raises OSError there; once there is room it writes what has waited
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        self._waiting += data
        try:
            self.flush()
        except OSError as error:
            if error.errno not in FULL:
                raise

    def flush(self) -> None:
        while self._waiting:
            # A disk takes what it has room for, which may be half a row.
            del self._waiting[: os.write(self._file, self._waiting)]

    def drop_torn_line(self) -> None:
        """What stands behind the last line's end: its writer died on a full disk."""
        size, tail = os.fstat(self._file).st_size, b""
        while len(tail) < size and b"\n" not in tail:
            start = max(size - 2 * len(tail) - 4096, 0)
            tail = os.pread(self._file, size - start, start)
        if torn := len(tail) - (tail.rfind(b"\n") + 1):
            os.ftruncate(self._file, size - torn)

    def close(self) -> None:
        """What has found no room until now is lost."""
        try:
            self.write(b"")
        finally:
            os.close(self._file)
