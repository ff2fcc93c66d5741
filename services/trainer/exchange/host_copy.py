"""A copy of tensors in memory of the host, so that the tensors may change while the copy is written."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from itertools import accumulate

import torch

ALIGNMENT = 64
"""Bytes; more than any element has."""


def copy_to_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same names, dtypes and shapes, all in one mapping of its own.

    The kernel has its memory back with the last of them. Memory of the allocator would stay with the
    process on a CPU, where freed memory is kept for the next step (trimaran/run/environment.py).

    Example: copy_to_host({"a": torch.ones(2)})["a"]
    """
    sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors.values()]
    *starts, end = accumulate(sizes, initial=0)
    # Of small pages: where memory is in pieces, the kernel takes longer to find large ones than to copy.
    mapping = mmap.mmap(-1, max(end, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    copies = {}
    for (name, tensor), start in zip(tensors.items(), starts, strict=True):
        place = memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        copies[name] = place.copy_(tensor.detach())
    return copies
