"""Logs of a run that became long.

A process writes to a log that was opened for it, as do the libraries in it, so nobody else can give it
another file. What is there is copied to `NAME.log.1`, in place of what stood there, and the log is emptied:
whoever appends to it goes on at its start. A line that comes between the two is lost.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

LOG_BYTES = 32 << 20
"""After which a log is emptied: with the part before it, a process takes twice as much."""
LOOK_SECONDS = 30.0
UNLOCKABLE = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Of a file system that has no locks: two that shorten a log at once may lose a part of it there, while
without an end it would fill the disk."""


def shorten_logs(folder: Path, most: int = LOG_BYTES) -> None:
    """Those of all processes in `folder` that are longer than `most` bytes.

    Several may do so at once: one of them shortens a log, the others pass it by. What a symbolic link
    leads to is left alone.
    """
    for log in folder.glob("*.log"):
        try:
            found = log.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_size > most:
                _shorten(log, most)
        except OSError as error:  # it goes on growing until there is room for its copy
            logger.warning("%s cannot be shortened: %s", log, error)


def _shorten(log: Path, most: int) -> None:
    # To lock a file on NFS it has to be open for writing.
    with os.fdopen(os.open(log, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another launcher or supervisor is about it
        except OSError as error:
            if error.errno not in UNLOCKABLE:
                raise
        if os.fstat(file.fileno()).st_size <= most:
            return  # it has just been
        partial = log.with_suffix(".partial")
        partial.unlink(missing_ok=True)  # of one that was killed
        try:
            with partial.open("xb") as copy:
                shutil.copyfileobj(file, copy)
            partial.replace(log.with_suffix(".log.1"))
            os.truncate(file.fileno(), 0)
        finally:
            partial.unlink(missing_ok=True)
