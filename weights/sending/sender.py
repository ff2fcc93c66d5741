"""A trainer rank's end: opens transfer groups, sends its snapshot through them, and gives it out."""

from __future__ import annotations

import secrets
import threading
import time

import torch

from trimaran.config import WeightSyncSection
from trimaran.errors import OutOfOrderError, TransferError
from trimaran.host.device import Device
from trimaran.run.network import LOOPBACK, Host
from trimaran.trust.tls import SocketTls
from trimaran.types import Peer, Ranges, TransferGroup, TransferLimits
from weights.delta.delta_stage import delta_layout
from weights.sending.snapshot import Snapshot
from weights.transports.calls import hold
from weights.transports.collective.endpoint import Collective
from weights.transports.collective.terms import Terms
from weights.transports.collective.turns import GroupTurn
from weights.transports.memory_carrier import host_name
from weights.transports.relay.relay_server import RelayServer
from weights.transports.relay.stock import Holding, Key, Stock, contents_of
from weights.transports.streams import Stream
from weights.version.layout import BlockLayout, make_layout, subtract


class WeightSender:
    """Gives a trainer rank's snapshot to receivers, through transfer groups and by relay.

    Safe to call from several threads. `start` it, `close` it in the end. It keeps
    the groups of one plan open at a time: those with one nonce. More than one is
    needed only where receivers want different blocks.

    Example:

        sender = WeightSender(pick("cpu"), 0, WeightSyncSection())
        sender.start()
        sender.hold(snapshot)  # the relay gives it out now
        group = sender.open(TransferGroup(1, "nonce", 2, ""), timeout=60.0)
        sender.send(snapshot, group.group_id, ((0, 694),), "", limits)
    """

    def __init__(
        self,
        device: Device,
        index: int,
        config: WeightSyncSection,
        host: Host = LOOPBACK,
        tls: SocketTls | None = None,
    ) -> None:
        """`tls`: of the relay; transfer groups do without it."""
        self._device = device
        self._host = host
        self._index = index
        self._config = config
        self._lock = threading.Lock()
        self._ends: dict[int, Collective] = {}
        self._turn = GroupTurn()
        self._newest = 0
        self._stock = Stock()
        self._key = secrets.token_hex(32)
        self._relay = RelayServer(config, self._key, self._stock, host=host, tls=tls)

    def start(self) -> None:
        """Raises TransferError when the host's address cannot be listened on."""
        self._relay.start()

    @property
    def peer(self) -> Peer:
        """Known once started."""
        return Peer(self._relay.address, self._key, host_name(), self._device.backend)

    def hold(self, snapshot: Snapshot | None) -> None:
        """What the relay gives out. Call with None before the snapshot's memory changes."""
        given: dict[Key, Holding] = {}
        if snapshot is not None:
            root = snapshot.manifest.root
            given[root, ""] = Holding(contents_of(snapshot.buffer, snapshot.layout))
            if snapshot.delta is not None:
                pieces = {n: memoryview(piece) for n, piece in snapshot.delta.pieces.items()}
                given[root, snapshot.delta.base_root] = Holding(pieces)
        self._stock.show(given)

    def open(self, group: TransferGroup, timeout: float) -> TransferGroup:
        """The group with its rendezvous address. Blocks for a moment.

        Idempotent by group id. Older groups with another nonce are closed, and
        a send under way in one raises at once. Raises TransferError for a group
        older than the newest, or for one that has failed.
        """
        with hold(self._lock, timeout):
            end = self._ends.get(group.group_id)
            if end is not None and _same(end.group, group):
                if not end.healthy:
                    raise TransferError(
                        f"transfer group {group.group_id} has failed; open a new one"
                    )
                return end.group
            if group.group_id <= self._newest:
                raise TransferError(
                    f"transfer group {group.group_id} is older than {self._newest}; open a newer one"
                )
            for group_id, end in list(self._ends.items()):
                if end.group.nonce != group.nonce:
                    self._ends.pop(group_id).close()
            self._newest = group.group_id
            end = Collective.host(self._device, self._index, self._host, group, timeout, self._turn)
            self._ends[group.group_id] = end
            return end.group

    def send(
        self,
        snapshot: Snapshot,
        group_id: int,
        ranges: Ranges,
        base_root: str,
        limits: TransferLimits,
    ) -> int:
        """Bytes sent, once every receiver has them. Blocks; joins the group on first use.

        `ranges`: the group's blocks, as in its receivers' `Source`. With a
        `base_root` the pieces of the snapshot's delta travel instead.

        Raises OutOfOrderError when the delta is against another base, and
        TransferError when the snapshot does not hold the blocks, the group is
        not open, a receiver fails or the limits' timeout passes; the group is
        closed for good in the last two cases.
        """
        deadline = time.monotonic() + limits.timeout
        if missing := subtract(ranges, snapshot.layout.ranges):
            raise TransferError(f"blocks {missing} are not in this rank's snapshot; ask its owner")
        with hold(self._lock, limits.timeout):
            end = self._ends.get(group_id)
        if end is None:
            raise TransferError(f"transfer group {group_id} is not open; open it first")
        memory = None if base_root else snapshot.memory
        if base_root:
            layout, stream = _delta_stream(snapshot, ranges, base_root)
        else:
            own = snapshot.layout
            layout = own if ranges == own.ranges else _layout(snapshot, ranges)
            stream = Stream(layout, snapshot.buffer, own)
        terms = Terms.of(snapshot.manifest.root, base_root, layout, limits.bucket_bytes)
        end.broadcast(stream, terms, max(deadline - time.monotonic(), 0.0), memory=memory)
        return stream.num_bytes

    def close(self) -> None:
        """A send under way raises at once."""
        for end in list(self._ends.values()):
            end.close()
        with self._lock:
            for end in self._ends.values():
                end.close()
            self._ends = {}
        self._relay.close()
        self._stock.show({})


def _same(opened: TransferGroup, asked: TransferGroup) -> bool:
    """All but the rendezvous, which only the sender knows at first."""
    return (opened.nonce, opened.world_size) == (asked.nonce, asked.world_size)


def _layout(snapshot: Snapshot, ranges: Ranges) -> BlockLayout:
    return make_layout(snapshot.manifest.tensors, ranges)


def _delta_stream(snapshot: Snapshot, ranges: Ranges, base_root: str) -> tuple[BlockLayout, Stream]:
    delta = snapshot.delta
    if delta is None or delta.base_root != base_root:
        raise OutOfOrderError(
            f"this rank has {f'a delta against {delta.base_root}' if delta else 'no delta'},"
            f" not one against {base_root}; send the full version"
        )
    layout = delta_layout(snapshot.manifest.tensors, ranges, delta.describe(ranges))
    data = bytearray().join(delta.pieces.get(p.block.number, b"") for p in layout.pieces)
    buffer = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0).byte()
    return layout, Stream(layout, buffer, layout)
