"""Another process's HostMemory on this host, read where it lies and never copied."""

from __future__ import annotations

import mmap
import os

from services.weight_sync.data.lease import lease, release
from services.weight_sync.data.memory import bytes_of, check_memory, opened
from trimaran.errors import TransferError


class BorrowedMemory:
    """Leased from the start until `release`. Mapped, and kept, until this object and every view are
    dropped, also where its owner is gone.

    Example:

        memory = BorrowedMemory(path, 1 << 20)
        memory.buffer[:4]  # the owner cannot write to it now
        memory.release()
    """

    def __init__(self, path: str, size: int) -> None:
        """Raises TransferError when the owner is gone or writes to it, or the memory is of another
        size or could shrink."""
        self.size = size
        with opened(path) as descriptor:
            check_memory(path, descriptor, size)
            _lease(path, descriptor)
            mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else None
            self.buffer = bytes_of(mapping)
            """uint8, one dimension. Writing to it is a SIGSEGV."""
            self._descriptor = os.dup(descriptor)

    @property
    def path(self) -> str:
        """Opens in another process of the same user, while this one lives and holds the memory."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def is_at(self, path: str) -> bool:
        """Whether `path` leads to the same memory. Raises TransferError when it leads nowhere."""
        with opened(path) as descriptor:
            return os.path.sameopenfile(descriptor, self._descriptor)

    def lease(self) -> None:
        """Again, after `release`. Raises TransferError while the owner writes to it."""
        _lease(self.path, self._descriptor)

    def release(self) -> None:
        """The owner may write to it from now on."""
        release(self._descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _lease(path: str, descriptor: int) -> None:
    if not lease(descriptor):
        raise TransferError(f"{path}: its owner writes to it; take the version from another peer")
