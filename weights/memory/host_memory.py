"""Host memory that another process can map, and typed views of the blocks in it.

The memory has no name in any file system: it vanishes with its owner and with
those who have mapped it, whatever the end of that owner was. It is sealed
against shrinking, so that a reader never meets a SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import stat
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch

from trimaran.errors import TransferError
from trimaran.host.device import Device
from weights.memory import lease
from weights.memory.free_memory import require_free_memory
from weights.version.layout import PlacedBlock

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

TAKEN_AT_A_TIME = 64 * 2**20
"""Bytes, between two looks at what is left."""
PAGE_TABLE_SHARE = 512
"""A mapping needs 8 bytes for each page of 4 KiB."""
PATH = re.compile("/proc/[0-9]+/fd/[0-9]+")

Register = Callable[[int, int], Callable[[], object] | None]
"""(address, bytes) -> what undoes it, or None."""


class HostMemory:
    """`size` bytes in an anonymous file, kept until this object and every view are dropped.

    Example:

        memory = HostMemory(1 << 20)
        memory.buffer[:4] = 7
        MemoryReader().map(memory.path, 1 << 20)[:4]  # in another process: four sevens
    """

    def __init__(self, size: int, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called again and again meanwhile; what it raises ends the allocation.

        Raises TransferError when memory is short.
        """
        self.size = size
        self._registering = threading.Lock()
        self._registered: set[str] = set()
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self._descriptor = os.memfd_create("trimaran-weights", flags)
        try:
            self._take_pages(check)
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self._mapping = _Mapping(self._descriptor, size) if size else None
            self.buffer = bytes_of(self._mapping)
            """uint8, one dimension."""
        except OSError as error:
            os.close(self._descriptor)
            raise TransferError(
                f"no room for {size / 2**20:.0f} MiB of weights on the host: {error.strerror}"
            ) from None
        except BaseException:
            os.close(self._descriptor)
            raise

    def _take_pages(self, check: Callable[[], None]) -> None:
        """All of them now: what is missing is an error here, and not a SIGBUS or a kill later.

        The kernel kills for a page that it cannot give, so it is only asked for what is there.
        Other allocations at the same time are seen at the next look.
        """
        for start in range(0, self.size, TAKEN_AT_A_TIME):
            check()
            left = self.size - start
            require_free_memory(left + left // PAGE_TABLE_SHARE, "weights")
            os.posix_fallocate(self._descriptor, start, min(TAKEN_AT_A_TIME, left))

    @property
    def path(self) -> str:
        """Opens in another process of the same user, while this one lives and holds the memory."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def claim(self) -> bool:
        """To write to it: it cannot be borrowed until `release`. False while it is borrowed."""
        return lease.claim(self._descriptor)

    def release(self) -> None:
        """Others may borrow it (`BorrowedMemory`)."""
        lease.release(self._descriptor)

    def register(self, name: str, begin: Register) -> None:
        """`begin(address, num_bytes)` is called once for each `name`. What it returns is called
        before the memory is unmapped, when this object and every view are dropped; so it may not
        hold any of them.

        That is how a device locks the pages for its copies, and how a network card would for RDMA.

        Example: memory.register("cuda", lambda *where: lock_pages("cuda", *where))
        """
        with self._registering:
            if self._mapping is None or name in self._registered:
                return
            self._registered.add(name)
            if end := begin(self.buffer.data_ptr(), self.size):
                self._mapping.ends.append(end)

    def __del__(self) -> None:
        # A failed __init__ has closed it and left no buffer.
        if hasattr(self, "buffer"):
            os.close(self._descriptor)


def lock_for_copies(memory: HostMemory, device: Device, index: int) -> None:
    """So that device `index` copies from it and to it as fast as it can. Once for each memory."""
    memory.register(device.kind, lambda address, size: device.lock_pages(address, size, index))


class MemoryReader:
    """Maps other processes' HostMemory, and keeps what it has mapped: an owner uses its memory
    again for the next version, and a new mapping takes as long as a copy.

    Safe to call from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapped: dict[str, tuple[int, torch.Tensor]] = {}
        """By path: the file's number, which no other has while it is mapped, and its bytes."""

    def map(self, path: str, size: int) -> torch.Tensor:
        """uint8, one dimension, of what lies there now and later. Writing to it is a SIGSEGV.

        Raises TransferError when the owner is gone, or the memory is of another size or could
        shrink.
        """
        with self._lock, opened(path) as descriptor:
            check_memory(path, descriptor, size)
            found = os.fstat(descriptor).st_ino
            number, buffer = self._mapped.get(path, (0, None))
            if buffer is None or number != found:
                mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else None
                buffer = bytes_of(mapping)
                self._mapped[path] = found, buffer
            return buffer

    def keep(self, paths: Collection[str]) -> None:
        """Let go of all others, and of their memory if their owners have."""
        with self._lock:
            self._mapped = {p: mapped for p, mapped in self._mapped.items() if p in paths}

    def forget_gone(self) -> None:
        """Let go of what its owner has let go of."""
        with self._lock:
            self._mapped = {p: m for p, m in self._mapped.items() if number_of(p) == m[0]}


def number_of(path: str) -> int | None:
    """The file's; None when it is gone."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Open for reading. Raises TransferError for anything but a file without a name of this user's.

    Looked at before it is opened: to open a pipe or a device can do something.
    """
    if not PATH.fullmatch(path):
        raise TransferError(f"{path[:80]!r} names no memory; an owner's is /proc/PID/fd/NUMBER")
    with _open(path, path, os.O_PATH) as place:
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink or found.st_uid != os.geteuid():
            raise TransferError(f"{path}: is not memory of this user; offer a HostMemory")
        with _open(path, f"/proc/self/fd/{place}", os.O_RDONLY) as descriptor:
            yield descriptor


@contextmanager
def _open(name: str, path: str, flags: int) -> Iterator[int]:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise TransferError(
            f"{name}: the owner's memory is gone ({error.strerror}); stage the version again"
        ) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def check_memory(path: str, descriptor: int, size: int) -> None:
    """Raises TransferError unless it has `size` bytes for as long as it is open."""
    if (found := os.fstat(descriptor).st_size) != size:
        raise TransferError(
            f"{path}: holds {found} bytes; the manifest asks for {size};"
            " the owner's memory is gone or its blocks differ; stage the version again"
        )
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0  # a file of another kind
    if not seals & fcntl.F_SEAL_SHRINK:
        raise TransferError(f"{path}: could shrink while it is read; offer sealed memory")


class _Mapping(mmap.mmap):
    """Written to, and unmapped when its last view is dropped."""

    ends: list[Callable[[], object]]

    def __new__(cls, descriptor: int, size: int) -> _Mapping:
        mapping = super().__new__(cls, descriptor, size, access=mmap.ACCESS_WRITE)
        mapping.ends = []
        """Called before that."""
        return mapping

    def __del__(self) -> None:
        for end in self.ends:
            end()


def bytes_of(mapping: mmap.mmap | None) -> torch.Tensor:
    if mapping is None:
        return torch.empty(0, dtype=torch.uint8)
    with warnings.catch_warnings():
        # That torch cannot see that a tensor is only to be read.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(mapping, dtype=torch.uint8)


def block_bytes(buffer: torch.Tensor, piece: PlacedBlock) -> torch.Tensor:
    return buffer[piece.start : piece.end]


def block_view(buffer: torch.Tensor, piece: PlacedBlock) -> torch.Tensor:
    """The block as a view of its own dtype and shape."""
    dtype = DTYPES[piece.block.tensor.dtype]
    return block_bytes(buffer, piece).view(dtype).view(piece.block.shape)
