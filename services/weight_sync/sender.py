"""The trainer's end: opens transfer groups and sends snapshots through them."""

from __future__ import annotations

import threading

from services.weight_sync.calls import hold
from services.weight_sync.collective import Collective
from services.weight_sync.manifest import buckets
from services.weight_sync.snapshot import Snapshot
from trimaran.device import Device
from trimaran.errors import TransferError
from trimaran.types import TransferGroup


class WeightSender:
    """Holds one transfer group at a time. Safe to call from several threads."""

    def __init__(self, device: Device, index: int = 0) -> None:
        self._device = device
        self._index = index
        self._lock = threading.Lock()
        self._end: Collective | None = None
        self._newest = 0

    def open(self, group: TransferGroup, timeout: float) -> TransferGroup:
        """The group with its rendezvous address. Blocks for a moment.

        Idempotent by group id; an older group is closed, and a send under way
        in it raises at once. Raises TransferError for a group older than the
        newest, or for one that has failed.
        """
        under_way = self._end
        if under_way is not None and group.group_id > under_way.group.group_id:
            under_way.give_up()
        with hold(self._lock, timeout):
            end = self._end
            if end is not None and (end.group.group_id, end.group.nonce, end.group.world_size) == (
                group.group_id,
                group.nonce,
                group.world_size,
            ):
                if not end.healthy:
                    raise TransferError(
                        f"transfer group {group.group_id} has failed; open a new one"
                    )
                return end.group
            if group.group_id <= self._newest:
                raise TransferError(
                    f"transfer group {group.group_id} is older than {self._newest}; open a newer one"
                )
            if end is not None:
                end.close()
            self._newest = group.group_id
            self._end = Collective.host(self._device, self._index, group, timeout)
            return self._end.group

    def send(self, snapshot: Snapshot, group_id: int, bucket_bytes: int, timeout: float) -> int:
        """Bytes sent, once every receiver has them. Blocks; joins the group on first use.

        Raises TransferError when the group is not open, a receiver fails or
        `timeout` seconds pass; the group is then closed for good.
        """
        with hold(self._lock, timeout):
            end = self._end
            if end is None or end.group.group_id != group_id:
                raise TransferError(f"transfer group {group_id} is not open; open it first")
            total = snapshot.buffer.numel()
            end.broadcast(snapshot.buffer, buckets(total, bucket_bytes), timeout)
            return total

    def close(self) -> None:
        """A send under way raises at once."""
        if self._end is not None:
            self._end.give_up()
        with self._lock:
            if self._end is not None:
                self._end.close()
                self._end = None
