"""Locks of files (flock), which the kernel takes from a process that ends, however it ends."""

from __future__ import annotations

import fcntl
from pathlib import Path

from trimaran.errors import InputError


def try_lock(file: int, path: Path, kind: int = fcntl.LOCK_EX) -> bool:
    """Locks what is open as `file` at `path`; False where another process has it.

    Raises InputError on a file system that has no locks.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise InputError(
            f"{path}: cannot be locked on this file system ({error.strerror}); name a folder on one that has"
            " locks, such as a local disk"
        ) from None
    return True
