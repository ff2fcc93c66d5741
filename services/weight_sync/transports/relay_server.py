"""Gives verified blocks to peers; `relay_wire.py` has the protocol, `stock.py` what is given out."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from services.weight_sync.transports.relay_wire import (
    BLOCK,
    END,
    FRAME,
    LENGTH,
    MAX_REQUEST_BYTES,
    Connection,
    ProtocolError,
    Reason,
    Request,
    Status,
    greet,
    welcome,
)
from services.weight_sync.transports.stock import Holding, Stock
from trimaran.config import WeightSyncSection
from trimaran.errors import TransferError
from trimaran.types import MAX_BLOCKS

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
"""From the connection to the request."""
LANDING_SECONDS = 2.0
"""How long a block that is on its way is waited for."""
MAX_STRANGERS = 64
"""Connections that have not proved themselves yet. When there are more, the oldest one makes room."""
MAX_STRANGERS_PER_ADDRESS = 32
"""The same among those from one address, so that one machine cannot crowd out the others."""
BACKLOG = 64
CLOSE_SECONDS = 5.0


class RelayServer:
    """One thread that accepts, and one a connection. `start` it, `close` it in the end."""

    def __init__(self, config: WeightSyncSection, key: str, stock: Stock) -> None:
        self._config = config
        self._key = key
        self._stock = stock
        self._slots = threading.BoundedSemaphore(config.relay_fan_out)
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._strangers: dict[socket.socket, str] = {}
        """Those of the connections that have not proved themselves, oldest first, by address."""
        self._accepting: threading.Thread | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """host:port, once started."""
        return self._address

    def start(self) -> None:
        """Idempotent. Raises TransferError when the configured address cannot be listened on."""
        if self._listener is not None:
            return
        address = self._config.address
        try:
            self._listener = socket.create_server((address, 0), backlog=BACKLOG)
        except OSError as error:
            raise TransferError(
                f"the relay cannot listen on {address} ({error.strerror});"
                " check weight_sync.address"
            ) from None
        self._address = f"{address}:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(
            target=self._accept, args=(self._listener,), name="relay-accept", daemon=True
        )
        self._accepting.start()

    def close(self) -> None:
        """Idempotent; ends every connection."""
        with self._lock:
            listener, self._listener = self._listener, None
            connections = dict(self._connections)
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # or accept would not wake up
            listener.close()
        for sock in connections:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in (self._accepting, *connections.values()):
            if thread is not None:
                thread.join(max(deadline - time.monotonic(), 0.0))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, (address, _) = listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if self._listener is None:
                    return
                # Out of descriptors, for instance: serve on when some are free again.
                logger.warning("the relay could not accept a connection: %s", error)
                time.sleep(0.1)
                continue
            with self._lock:
                if self._listener is None:
                    sock.close()
                    continue
                self._make_room(address)
                self._strangers[sock] = address
                thread = threading.Thread(
                    target=self._handle, args=(sock,), name="relay-serve", daemon=True
                )
                self._connections[sock] = thread
                thread.start()

    def _make_room(self, address: str) -> None:
        """For one more stranger: who says nothing must not keep a puller out."""
        near = [sock for sock, origin in self._strangers.items() if origin == address]
        oldest = None
        if len(near) >= MAX_STRANGERS_PER_ADDRESS:
            oldest = near[0]
        elif len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
        if oldest is not None:
            del self._strangers[oldest]
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes up and closes it

    def _handle(self, sock: socket.socket) -> None:
        try:
            connection = Connection(sock, time.monotonic() + HANDSHAKE_SECONDS)
            nonces = greet(connection, self._key)
            with self._lock:
                self._strangers.pop(sock, None)
            if nonces is None:
                logger.warning("a puller with a wrong key was turned away")
            else:
                self._serve(connection, nonces)
        except OSError as error:
            logger.info("a puller is gone: %s", error)
        finally:
            with self._lock:
                self._connections.pop(sock, None)
                self._strangers.pop(sock, None)
                sock.close()  # under the lock: nobody may end a socket that has its number by then

    def _serve(self, connection: Connection, nonces: bytes) -> None:
        # Only now: who has not proved itself cannot take a place.
        if not self._slots.acquire(blocking=False):
            welcome(connection, self._key, nonces, Status.BUSY)
            return
        try:
            welcome(connection, self._key, nonces, Status.READY)
            [size] = LENGTH.unpack(connection.receive(LENGTH.size))
            if size > MAX_REQUEST_BYTES:
                raise ProtocolError(f"a request of {size} bytes")
            request = Request.decode(connection.receive(size))
            seconds = min(request.seconds, self._config.stage_timeout)
            connection.deadline = time.monotonic() + seconds
            reason = self._give(connection, request, request.numbers(MAX_BLOCKS))
            connection.send(FRAME.pack(END, reason, 0))
        finally:
            self._slots.release()

    def _give(self, connection: Connection, request: Request, numbers: Sequence[int]) -> Reason:
        holding = self._stock.find(request.root, request.base_root)
        if holding is None:
            return Reason.GONE
        pending = dict.fromkeys(numbers)
        while pending:
            ready = holding.ready(pending, LANDING_SECONDS)
            if not ready:
                return Reason.GONE if holding.void else Reason.LACKS
            for number in ready:
                del pending[number]
                if not _send_block(connection, holding, number):
                    return Reason.GONE
        return Reason.COMPLETE


def _send_block(connection: Connection, holding: Holding, number: int) -> bool:
    data = holding.read(number)
    if data is None:
        return False
    connection.send(FRAME.pack(BLOCK, number, len(data)))
    connection.send(data)
    # The kernel has its own copy now: what is void was so before the last byte was copied.
    valid = not holding.void
    connection.send(bytes([valid]))
    return valid
