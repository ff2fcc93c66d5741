"""The receiving side of the memory transport: one copy out of the sender's memory.

Sender and receiver run on one machine as one user. The sender's snapshot is an
anonymous file, open as /proc/<pid>/fd/<number> while the sender holds it. It is
mapped, and stays so while the sender offers it again; each block is copied from
there straight into its place, and digested while it is in the cache. A snapshot
that is replaced in the meantime shows as a wrong digest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trimaran.errors import TransferError
from trimaran.types import MemorySource
from weights.memory.host_memory import MemoryReader
from weights.transports.carrier import Carrier, CarryJob, WrongBlockError, describe

CHUNK_BYTES = 16 * 2**20


def host_name() -> str:
    """Equal on two processes that can read each other's memory.

    The kernel's boot, the space of process ids (a container has its own) and the user.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getuid()}"


class MemoryCarrier(Carrier[MemorySource]):
    def __init__(self, chunk_bytes: int = CHUNK_BYTES) -> None:
        """`chunk_bytes`: copied between two looks at the deadline."""
        self._chunk_bytes = chunk_bytes
        self._reader = MemoryReader()

    def prepare(self, sources: Sequence[MemorySource]) -> None:
        self._reader.keep([source.path for source in sources])

    def carry(self, job: CarryJob[MemorySource]) -> None:
        path, chunk_bytes = job.source.path, self._chunk_bytes
        source = self._reader.map(path, job.stream.num_bytes).numpy()
        target = job.buffer.numpy()
        places = {piece.block.number: piece.start for piece in job.stream.pieces}
        for piece in job.pieces():
            start, size = places[piece.block.number], piece.end - piece.start
            for first in range(0, size, chunk_bytes):
                job.stop.check()
                _check_deadline(job, path)
                here = slice(piece.start + first, piece.start + min(first + chunk_bytes, size))
                there = slice(start + first, start + min(first + chunk_bytes, size))
                np.copyto(target[here], source[there])
            try:
                job.land(piece.block.number)
            except WrongBlockError as error:
                raise TransferError(
                    f"{path}: {error}; the sender may have replaced its snapshot"
                    f" while {describe(piece.block)} was copied"
                ) from None

    def close(self) -> None:
        self._reader.keep(())


def _check_deadline(job: CarryJob[MemorySource], path: str) -> None:
    if time.monotonic() > job.deadline:
        raise TransferError(f"{path}: not copied by the deadline")
