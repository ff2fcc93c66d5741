"""Gives verified blocks to peers; `relay_wire.py` has the protocol, `stock.py` what is given out."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from trimaran.config import WeightSyncSection
from trimaran.errors import TransferError
from trimaran.run.network import LOOPBACK, Host
from trimaran.trust.tls import SocketTls
from trimaran.types import MAX_BLOCKS
from weights.transports.relay.door import DEFAULT_PATIENCE, Door, DoorPatience
from weights.transports.relay.relay_wire import (
    BLOCK,
    END,
    FRAME,
    LENGTH,
    MAX_REQUEST_BYTES,
    Connection,
    ProtocolError,
    Reason,
    RelayRequest,
    RelayStatus,
    welcome,
)
from weights.transports.relay.stock import Holding, Stock

LANDING_SECONDS = 2.0
"""How long a block that is on its way is waited for."""


class RelayServer:
    """`start` it, `close` it in the end.

    Example:

        server = RelayServer(WeightSyncSection(), key="secret", stock=stock)
        server.start()
        source = RelaySource(((0, 694),), (Peer(server.address, "secret", host=""),))
    """

    def __init__(
        self,
        config: WeightSyncSection,
        key: str,
        stock: Stock,
        patience: DoorPatience = DEFAULT_PATIENCE,
        host: Host = LOOPBACK,
        tls: SocketTls | None = None,
    ) -> None:
        self._config = config
        self._host, self._tls = host, tls
        self._key = key
        self._stock = stock
        self._patience = patience
        self.num_parts = 1
        """In which a puller asks for a version, each over a connection of its own: one a sender."""
        self._num_served = 0
        self._counting = threading.Lock()
        self._door: Door | None = None

    @property
    def address(self) -> str:
        """host:port, once started."""
        return self._door.address if self._door else ""

    def start(self) -> None:
        """Idempotent. Raises TransferError when the host's address cannot be listened on."""
        if self._door is not None:
            return
        try:
            listener = self._host.listen()
        except OSError as error:
            raise TransferError(
                f"the relay cannot listen on {self._host.address} ({error.strerror}); check"
                " network.subnet"
            ) from None
        self._door = Door(
            "relay", listener, self._key, self._serve, patience=self._patience, tls=self._tls
        )

    def close(self) -> None:
        """Idempotent; ends every connection."""
        if self._door is not None:
            self._door.close()

    def _serve(self, connection: Connection, nonces: bytes) -> None:
        # Only now: who has not proved itself cannot take a place.
        if not self._take_place():
            welcome(connection, self._key, nonces, RelayStatus.BUSY)
            return
        try:
            welcome(connection, self._key, nonces, RelayStatus.READY)
            [size] = LENGTH.unpack(connection.receive(LENGTH.size))
            if size > MAX_REQUEST_BYTES:
                raise ProtocolError(f"a request of {size} bytes")
            request = RelayRequest.decode(connection.receive(size))
            seconds = min(request.seconds, self._config.stage_timeout)
            connection.deadline = time.monotonic() + seconds
            reason = self._give(connection, request, request.numbers(MAX_BLOCKS))
            connection.send(FRAME.pack(END, reason, 0))
        finally:
            with self._counting:
                self._num_served -= 1

    def _take_place(self) -> bool:
        """A puller with connections for several parts counts once."""
        with self._counting:
            free = self._num_served < self._config.relay_fan_out * self.num_parts
            self._num_served += free
            return free

    def _give(
        self, connection: Connection, request: RelayRequest, numbers: Sequence[int]
    ) -> Reason:
        holding = self._stock.find(request.root, request.base_root)
        if holding is None:
            return Reason.GONE
        left = len(numbers)
        for number in holding.follow(numbers, LANDING_SECONDS):
            if not _send_block(connection, holding, number):
                return Reason.GONE
            left -= 1
        if left:
            return Reason.GONE if holding.void else Reason.LACKS
        return Reason.COMPLETE


def _send_block(connection: Connection, holding: Holding, number: int) -> bool:
    """False when it has been withdrawn, perhaps while it was sent."""
    data = holding.read(number)
    if data is None:
        return False
    connection.send(FRAME.pack(BLOCK, number, len(data)))
    connection.send(data)
    # The kernel has its own copy now: what is void was so before the last byte was copied.
    return not holding.void
