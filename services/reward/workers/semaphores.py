"""What the workers' pools leave on the host after a kill: locks, and the fork server's socket.

multiprocessing keeps each lock as a named semaphore, a file in /dev/shm, and the socket in a folder for
temporary files, /tmp/pymp-*. A worker that is started again has new locks, so those of a run's reward
service bear its name, and that is what it notes (trimaran/host/shared_memory.py). The socket lies in the
service's own folder there.
"""

from __future__ import annotations

import shutil
from multiprocessing import process, util
from pathlib import Path
from typing import Any

from trimaran.host.shared_memory import (
    make_socket_folder,
    note_names,
    note_of,
    remove_left,
    semaphore_prefix,
)


def claim_semaphores(run_folder: Path) -> None:
    """From now on this process's locks and socket are named after the run; those of an earlier life
    are removed.

    Call it once, before a pool is made, and while no other reward service of the run lives.
    """
    note = note_of(run_folder, "reward")
    note_names(note, [])  # their names say whose they are
    remove_left(note)
    note_names(note, [])
    current: Any = process.current_process()
    sockets = str(make_socket_folder(note))
    util.Finalize(None, shutil.rmtree, (sockets, True), exitpriority=-100)  # at an orderly end
    # multiprocessing has no public names for either.
    current._config["semprefix"] = f"/{semaphore_prefix(run_folder)}"
    current._config["tempdir"] = sockets
