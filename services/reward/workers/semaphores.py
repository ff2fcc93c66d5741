"""The locks that the workers' pools share with their workers.

multiprocessing keeps each as a named semaphore, a file in /dev/shm. A helper process removes them
when the service ends; a kill of the whole process group takes that one along, and they would stay
for ever. So those of a run's reward service bear its name, and its next life removes them.
"""

from __future__ import annotations

import hashlib
from multiprocessing import process
from pathlib import Path
from typing import Any

FOLDER = Path("/dev/shm")


def claim_semaphores(run_folder: Path, folder: Path = FOLDER) -> None:
    """From now on this process's are named after the run; those of an earlier life are removed.

    Call it once, before a pool is made, and while no other reward service of the run lives.
    """
    for path in find_semaphores(run_folder, folder):
        path.unlink(missing_ok=True)
    current: Any = process.current_process()
    current._config["semprefix"] = f"/{_prefix(run_folder)}"  # there is no other way to name them


def find_semaphores(run_folder: Path, folder: Path = FOLDER) -> list[Path]:
    """The run's, whoever made them."""
    return list(folder.glob(f"sem.{_prefix(run_folder)}-*"))


def _prefix(run_folder: Path) -> str:
    """Not by the run's id: runs of two managers on one machine may have the same."""
    return f"trimaran-{hashlib.sha256(bytes(run_folder.resolve())).hexdigest()[:16]}"
