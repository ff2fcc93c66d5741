"""A listening socket for those who know a key. Others are turned away after the handshake's deadline."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from trimaran.run.network import join
from trimaran.trust.tls import SocketTls
from weights.transports.relay.relay_wire import STALL_SECONDS, Connection, greet

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0

Serve = Callable[[Connection, bytes], None]
"""Given a connection whose other end has proved that it knows the key, and both nonces."""


@dataclass(frozen=True, slots=True)
class DoorPatience:
    """Seconds that a door waits for the other end of a connection."""

    handshake: float = 5.0
    """From the connection to the request."""
    stall: float = STALL_SECONDS
    """Without a byte of progress."""


DEFAULT_PATIENCE = DoorPatience()


class Door:
    """One thread that accepts, and one a connection. `close` it in the end."""

    def __init__(
        self,
        name: str,
        listener: socket.socket,
        key: str,
        serve: Serve,
        patience: DoorPatience = DEFAULT_PATIENCE,
        tls: SocketTls | None = None,
    ) -> None:
        """Open from now on; `name` stands in the threads' names."""
        self._name = name
        self._key = key
        self._serve = serve
        self._patience = patience
        self._tls = tls
        self._lock = threading.Lock()
        self._listener: socket.socket | None = listener
        self._connections: dict[socket.socket, threading.Thread] = {}
        self.address = join(*listener.getsockname()[:2])
        self._accepting = threading.Thread(
            target=self._accept, args=(listener,), name=f"{name}-accept", daemon=True
        )
        self._accepting.start()

    def close(self) -> None:
        """Idempotent; ends every connection."""
        with self._lock:
            listener, self._listener = self._listener, None
            connections = dict(self._connections)
            for sock in connections:
                _end(sock)
        if listener is not None:
            _end(listener)  # or accept would not wake up
            listener.close()
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in (self._accepting, *connections.values()):
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if self._listener is None:
                    return
                # Out of descriptors, for instance: serve on when some are free again.
                logger.warning("%s could not accept a connection: %s", self._name, error)
                time.sleep(0.1)
                continue
            with self._lock:
                if self._listener is None:
                    sock.close()
                    continue
                thread = threading.Thread(
                    target=self._handle, args=(sock,), name=f"{self._name}-serve", daemon=True
                )
                self._connections[sock] = thread
                thread.start()

    def _handle(self, sock: socket.socket) -> None:
        patience, shown = self._patience, sock
        try:
            if self._tls is not None:
                sock.settimeout(patience.handshake)
                # A copy, because `close` shuts the socket itself down.
                shown = self._tls.accept(sock.dup())
            connection = Connection(shown, time.monotonic() + patience.handshake, patience.stall)
            nonces = greet(connection, self._key)
            if nonces is None:
                logger.warning("%s: a connection with a wrong key was refused", self._name)
            else:
                self._serve(connection, nonces)
        except OSError as error:
            logger.info("%s: a connection ended: %s", self._name, error)
        finally:
            if shown is not sock:
                shown.close()
            with self._lock:
                self._connections.pop(sock, None)
                # Under the lock: `close` must not end another socket that has its number by then.
                sock.close()


def _end(sock: socket.socket) -> None:
    """A thread that waits for it wakes up, and closes it."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
