"""Logs of a run that became long.

A process writes to a log that was opened for it, as do the libraries in it, so no other process can give it
another file. What is there is copied to `NAME.log.1`, in place of what stood there, and the log is emptied:
what appends to it goes on at its start. A line that comes between the two is lost.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

LOG_BYTES = 32 << 20
"""After which a log is emptied: with the part before it, a process takes twice as much."""
LOOK_SECONDS = 30.0


def shorten_logs(folder: Path, most: int = LOG_BYTES) -> None:
    """Shortens the logs in `folder` that are longer than `most` bytes. A symbolic link is left alone.

    One process does so in a folder: the run's launcher, or the supervisor of a node that does not see
    the launcher's folder.
    """
    for log in folder.glob("*.log"):
        try:
            found = log.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_size > most:
                _shorten(log)
        except OSError as error:  # it goes on growing until there is room for its copy
            logger.warning("%s cannot be shortened: %s", log, error)


def _shorten(log: Path) -> None:
    partial = log.with_suffix(".partial")
    partial.unlink(missing_ok=True)  # a process that was killed may have left it
    try:
        with (
            os.fdopen(os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file,
            partial.open("xb") as copy,
        ):
            shutil.copyfileobj(file, copy)
        partial.replace(log.with_suffix(".log.1"))
        os.truncate(log, 0)
    finally:
        partial.unlink(missing_ok=True)
