"""Logs of a run that became long.

A process writes to a log that was opened for it, as do the libraries in it, so nobody else can give it
another file. What is there is copied to `NAME.log.1`, in place of what stood there, and the log is emptied:
whoever appends to it goes on at its start. A line that comes between the two is lost.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

logger = logging.getLogger(__name__)

LOG_BYTES = 32 << 20
"""After which a log is emptied: with the part before it, a process takes twice as much."""
LOOK_SECONDS = 30.0


def shorten_logs(folder: Path, most: int = LOG_BYTES) -> None:
    """Those of all processes in `folder` that are longer than `most` bytes."""
    for log in folder.glob("*.log"):
        try:
            if log.stat().st_size > most:
                _shorten(log)
        except OSError as error:  # it goes on growing until there is room for its copy
            logger.warning("%s cannot be shortened: %s", log, error)


def _shorten(log: Path) -> None:
    partial = log.with_suffix(".partial")
    try:
        shutil.copyfile(log, partial)
        partial.replace(log.with_suffix(".log.1"))
        os.truncate(log, 0)
    finally:
        partial.unlink(missing_ok=True)
