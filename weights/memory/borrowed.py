"""Another process's HostMemory on this host, read where it lies and never copied."""

from __future__ import annotations

import mmap
import os

from trimaran.errors import TransferError
from weights.memory.host_memory import bytes_of, check_memory, number_of, opened
from weights.memory.lease import lease, release


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
            self.is_leased = True

    @property
    def path(self) -> str:
        """Opens in another process of the same user, while this one lives and holds the memory."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def is_at(self, path: str) -> bool:
        """Whether the same memory is still to be had there."""
        return number_of(path) == number_of(self.path)

    def lease(self) -> None:
        """Again, after `release`. Raises TransferError while the owner writes to it."""
        _lease(self.path, self._descriptor)
        self.is_leased = True

    def release(self) -> None:
        """The owner may write to it from now on."""
        release(self._descriptor)
        self.is_leased = False

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _lease(path: str, descriptor: int) -> None:
    if not lease(descriptor):
        raise TransferError(f"{path}: its owner writes to it; take the version from another peer")


class Borrower:
    """Keeps mapped what it has borrowed and given back, as long as its owner has it: the owner's next
    versions lie there again, and a new mapping takes as long as a copy.

    Example:

        memory = borrower.borrow(path, 1 << 20)
        memory.release()
        borrower.borrow(path, 1 << 20) is memory
    """

    def __init__(self) -> None:
        self._known: dict[str, BorrowedMemory] = {}

    def borrow(self, path: str, size: int) -> BorrowedMemory:
        """Leased. Raises as BorrowedMemory does."""
        self.forget_gone()
        known = self._known.get(path)
        if known is None or known.size != size:
            known = self._known[path] = BorrowedMemory(path, size)
        else:
            known.lease()
        return known

    def forget_gone(self) -> None:
        """Let go of what its owner has let go of, and of what was never given back: an engine may still
        read it."""
        known = self._known.items()
        self._known = {p: memory for p, memory in known if memory.is_at(p) and not memory.is_leased}
