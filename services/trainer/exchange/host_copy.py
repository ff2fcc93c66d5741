"""What a checkpoint is written from: tensors that may change before all of them are on the disk."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Mapping
from itertools import accumulate

import torch

from services.trainer.checkpoints.saved import SavedTensors, specs_of
from services.trainer.checkpoints.tensor_file import Spec

ALIGNMENT = 64
"""Bytes; more than any element has."""


class HostCopy(SavedTensors):
    """The values that `tensors` have now, on the host, each to be read once.

    A value is copied when it is read. Those that are left are copied by `detach`, which has to be called
    before the tensors change: so a checkpoint that is on the disk by then takes no memory for a copy.

    Example:
        copies = HostCopy({"a": weight})
        copies["a"]        # of another thread; valid until the next one is read
        copies.detach()
        weight.zero_()
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._specs = specs_of(tensors)
        self._live = {name: tensor.detach() for name, tensor in tensors.items()}
        self._copies: dict[str, torch.Tensor] = {}
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()

    @property
    def specs(self) -> Mapping[str, Spec]:
        return self._specs

    def __getitem__(self, name: str) -> torch.Tensor:
        with self._lock:
            if name in self._copies:
                return self._copies.pop(name)
            tensor = self._live.pop(name)
            if not self._buffer.numel():
                largest = max(spec.num_bytes for spec in self._specs.values())
                self._buffer = _own_memory(largest)
            return _place(self._buffer, 0, tensor).copy_(tensor)

    def detach(self) -> None:
        """Copies what was not read yet. The tensors may change once this returns."""
        with self._lock:
            sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in self._live.values()]
            *starts, end = accumulate(sizes, initial=0)
            if not end:
                return
            memory = _own_memory(end)
            for (name, tensor), start in zip(self._live.items(), starts, strict=True):
                self._copies[name] = _place(memory, start, tensor).copy_(tensor)
            self._live.clear()

    def clear(self) -> None:
        """Gives up the memory; nothing is read any more."""
        with self._lock:
            self._live.clear()
            self._copies.clear()
            self._buffer = torch.empty(0, dtype=torch.uint8)


def _own_memory(num_bytes: int) -> torch.Tensor:
    """A mapping of its own, which the kernel has back with the last of its tensors.

    Memory of the allocator would stay with the process on a CPU, where freed memory is kept for the
    next step (trimaran/run/environment.py).
    """
    # Of small pages: where memory is in pieces, the kernel takes longer to find large ones than to copy.
    mapping = mmap.mmap(-1, max(num_bytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(mapping, dtype=torch.uint8)


def _place(memory: torch.Tensor, start: int, tensor: torch.Tensor) -> torch.Tensor:
    """The part of `memory` that a copy of `tensor` takes."""
    return memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
