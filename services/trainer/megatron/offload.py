"""Tensors whose values wait on the host while nobody computes with them, so that the device's memory is free.

A tensor stays the same object, with views of it and whatever refers to it: its storage alone is emptied, and
filled again. The copies on the host stay: memory that a device can read without a copy (pinned) is slow to get.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from trimaran.errors import InternalError


class HostCopies:
    """Example: `copies.put_away([moment])`, then `copies.values(moment)` on the host; `copies.bring_back()`"""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By the tensor's identity: the tensor, and its values on the host."""
        self._away = False

    def put_away(self, tensors: Iterable[torch.Tensor]) -> None:
        """All of them, none of which may be away. Copies of others are forgotten.

        Raises InternalError for a part of a larger storage.
        """
        kept, self._kept, self._away = self._kept, {}, True
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes() != tensor.nbytes:
                raise InternalError("only a tensor with a storage of its own can be off-loaded")
            _, host = kept.get(id(tensor)) or (tensor, _host_memory(tensor))
            host.copy_(tensor.detach())
            self._kept[id(tensor)] = tensor, host
            storage.resize_(0)

    def bring_back(self) -> None:
        """What is not away is left as it is."""
        if self._away:
            for tensor, host in self._kept.values():
                tensor.untyped_storage().resize_(host.nbytes)
                tensor.detach().copy_(host)
        self._away = False

    def values(self, tensor: torch.Tensor) -> torch.Tensor:
        """Wherever they are."""
        if self._away and id(tensor) in self._kept:
            return self._kept[id(tensor)][1]
        return tensor.detach()


def _host_memory(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type != "cpu")
