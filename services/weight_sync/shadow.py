"""A receiver's copy of one version, in anonymous memory that another process can map.

An engine that runs in a process of its own loads from here without a second
copy on the wire. The memory has no name in any file system: it vanishes with
its owner, whatever the end of that owner was.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

import torch

from services.weight_sync.flat import tensor_bytes, typed_view
from services.weight_sync.manifest import manifest_from_json, offsets
from trimaran.errors import TransferError
from trimaran.types import Manifest


class Shadow:
    """Owns its memory until it is dropped. Raises TransferError when memory is short."""

    def __init__(self, manifest: Manifest, reuse: Shadow | None = None) -> None:
        """`reuse` gives its memory up when it is of the right size, and must not be read any more."""
        self.manifest = manifest
        size = offsets(manifest.tensors)[-1]
        if reuse is not None and reuse._memory.size == size:
            self._memory = reuse._memory
        else:
            self._memory = _Memory(size)
        self.buffer = self._memory.buffer
        """uint8, one dimension."""

    @property
    def path(self) -> str:
        """Opens in another process of the same user, while this one lives and holds the shadow."""
        return f"/proc/{os.getpid()}/fd/{self._memory.descriptor}"

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(Hugging Face name, view) in the manifest's order. Copy what must outlive the shadow."""
        return _views(self.buffer, self.manifest)


class _Memory:
    def __init__(self, size: int) -> None:
        self.size = size
        self.descriptor = os.memfd_create("trimaran-shadow", os.MFD_CLOEXEC)
        try:
            if size:
                # Taken now: a lack of memory becomes an error here instead of a SIGBUS later.
                os.posix_fallocate(self.descriptor, 0, size)
            self.buffer = _map(self.descriptor, size, mmap.ACCESS_WRITE)
        except OSError as error:
            os.close(self.descriptor)
            raise TransferError(
                f"no room for {size / 2**20:.0f} MiB of weights on the host: {error.strerror}"
            ) from None

    def __del__(self) -> None:
        # A failed __init__ has closed it and left no buffer.
        if hasattr(self, "buffer"):
            os.close(self.descriptor)


def open_shadow(path: str, manifest_json: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of another process's shadow, as views of a private mapping.

    `manifest_json` is `manifest.manifest_to_json(shadow.manifest)`.
    Raises TransferError when the owner is gone or the shadow is of another size.
    """
    manifest = manifest_from_json(manifest_json)
    size = offsets(manifest.tensors)[-1]
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise TransferError(f"{path}: holds {found} bytes; the manifest asks for {size}")
            buffer = _map(file.fileno(), size, mmap.ACCESS_COPY)
    except OSError as error:
        raise TransferError(
            f"{path}: the staged weights are gone ({error.strerror}); stage them again"
        ) from None
    return _views(buffer, manifest)


def _map(descriptor: int, size: int, access: int) -> torch.Tensor:
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(mmap.mmap(descriptor, size, access=access), dtype=torch.uint8)


def _views(buffer: torch.Tensor, manifest: Manifest) -> Iterator[tuple[str, torch.Tensor]]:
    for tensor, piece in tensor_bytes(buffer, manifest.tensors):
        yield tensor.name, typed_view(piece, tensor)
