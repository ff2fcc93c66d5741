"""The locks that the workers' pools share with their workers.

multiprocessing keeps each as a named semaphore, a file in /dev/shm. A worker that is started again has
new ones, so those of a run's reward service bear its name, and that is what it notes
(trimaran/shared_memory.py).
"""

from __future__ import annotations

from multiprocessing import process
from pathlib import Path
from typing import Any

from trimaran.shared_memory import FOLDER, note_names, note_of, remove_left, semaphore_prefix


def claim_semaphores(run_folder: Path) -> None:
    """From now on this process's are named after the run; those of an earlier life are removed.

    Call it once, before a pool is made, and while no other reward service of the run lives.
    """
    note = note_of(run_folder, "reward")
    note_names(note, [])  # their names say whose they are
    remove_left(note)
    note_names(note, [])
    current: Any = process.current_process()
    # There is no other way to name them.
    current._config["semprefix"] = f"/{semaphore_prefix(run_folder)}"


def find_semaphores(run_folder: Path, folder: Path = FOLDER) -> list[Path]:
    """The run's, whoever made them."""
    return list(folder.glob(f"sem.{semaphore_prefix(run_folder)}-*"))
