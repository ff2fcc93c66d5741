"""Tensors whose values wait on the host while nothing computes with them, so that the device's memory is free.

A tensor stays the same object, with views of it and whatever refers to it: its storage alone is emptied, and
filled again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


class HostCopies:
    """Example: `copies.put_away([moment])`, then `copies.values(moment)` on the host; `copies.bring_back()`"""

    def __init__(self, keeps_memory: bool = True) -> None:
        """`keeps_memory`: copies stay on the host after `bring_back`, for the next time. Memory that a
        device can read without a copy (pinned) is slow to get."""
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By the storage's identity: a tensor that keeps it alive, and its bytes on the host."""
        self._keeps_memory = keeps_memory
        self.is_away = False

    def put_away(self, tensors: Iterable[torch.Tensor]) -> None:
        """The whole storage of each of them; none may be away. Copies of others are forgotten."""
        kept, self._kept, self.is_away = self._kept, {}, True
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._kept:
                continue  # of a tensor before it
            _, host = kept.get(key) or (tensor, _host_memory(storage, tensor.device))
            host.copy_(_bytes(storage, tensor.device))
            self._kept[key] = tensor, host
            storage.resize_(0)

    def bring_back(self) -> None:
        """What is not away is left as it is."""
        if not self.is_away:
            return
        for key in [*self._kept]:
            tensor, host = self._kept[key]
            storage = tensor.untyped_storage()
            storage.resize_(host.nbytes)
            _bytes(storage, tensor.device).copy_(host)
            if not self._keeps_memory:
                del self._kept[key]
        self.is_away = False

    def values(self, tensor: torch.Tensor) -> torch.Tensor:
        """Wherever they are."""
        kept = self._kept.get(tensor.untyped_storage()._cdata) if self.is_away else None
        if kept is None:
            return tensor.detach()
        host = torch.empty(0, dtype=tensor.dtype)
        return host.set_(
            kept[1].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
        )


def _bytes(storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _host_memory(storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
    pinned = device.type != "cpu"
    return torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=pinned)
