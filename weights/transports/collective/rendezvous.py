"""Where the members of a transfer group find each other: a key-value store in the sender.

On the host it is our own. gloo asks little of it: each member puts its addresses
under "0/<rank>" and waits for those of the others. Members prove by HMAC that
they know the group's nonce, in the relay's handshake; others neither read nor
writes anything. What a member may put is bounded.

    member   kind (1), key's length (2), value's length (4), seconds (8), key, value
    server   1 and the value's length (4) and the value; or 0: not there yet, ask again

An accelerator's group uses its store from threads of its own for as long as it
lives, so there it is torch's TCPStore, which serves any connection.
"""

from __future__ import annotations

import hashlib
import re
import socket
import struct
import threading
import time
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from trimaran.run.network import split
from trimaran.types import TransferGroup
from weights.transports.relay.door import Door
from weights.transports.relay.relay_wire import (
    STALL_SECONDS,
    Connection,
    ProtocolError,
    RelayStatus,
    introduce,
    welcome,
)

REQUEST = struct.Struct(">BHId")
ANSWER = struct.Struct(">BI")
PUT, GET = 1, 2
KEY = re.compile("0/([0-9]{1,5})")
WAIT_SECONDS = 1.0
"""For which the server holds a question; less than a stall."""
PAUSE_SECONDS = 0.005


class Rendezvous:
    """The sender's. Open until `close`."""

    def __init__(self, listener: socket.socket, group: TransferGroup) -> None:
        self._group = group
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._door = Door("rendezvous", listener, group.nonce, self._serve)

    def close(self) -> None:
        """Idempotent. Members that wait to join fail at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._door.close()

    def _serve(self, connection: Connection, nonces: bytes) -> None:
        welcome(connection, self._group.nonce, nonces, RelayStatus.READY)
        kind, key_size, size, seconds = REQUEST.unpack(connection.receive(REQUEST.size))
        most = max_value_bytes(self._group.world_size)
        if kind not in (PUT, GET) or key_size > 16 or size > most or not 0 <= seconds <= 60:
            raise ProtocolError(f"a request {kind} for {key_size} and {size} bytes")
        key = connection.receive(key_size).decode("ascii", "replace")
        value = connection.receive(size)
        found = KEY.fullmatch(key)
        if not found or int(found[1]) >= self._group.world_size:
            raise ProtocolError(f"a request for {key!r}")
        with self._changed:
            if kind == PUT:
                self._values.setdefault(key, value)
                self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._closed or key in self._values, min(seconds, WAIT_SECONDS)
            )
            answer = self._values.get(key)
        connection.send(ANSWER.pack(answer is not None, len(answer or b"")) + (answer or b""))


class GroupStore(Store):
    """A member's, by a connection a question; torch calls it from a thread without the GIL."""

    def __init__(self, group: TransferGroup, deadline: float) -> None:
        """`deadline`: time.monotonic(). The methods raise OSError, at once when nothing listens."""
        super().__init__()
        self._group = group
        self._deadline = deadline
        self._known: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:  # pyright: ignore
        data = value.encode() if isinstance(value, str) else bytes(value)
        if self._ask(PUT, key, data) != data:
            raise ProtocolError(f"another member has put its own value under {key}")

    def get(self, key: str) -> bytes:
        while key not in self._known:
            value = self._ask(GET, key, b"")
            if value is None:
                time.sleep(PAUSE_SECONDS)
            else:
                self._known[key] = value  # torch waits for a key before it gets it
        return self._known[key]

    def check(self, keys: list[str]) -> bool:
        return all(self._ask(GET, key, b"", 0.0) is not None for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # pyright: ignore
        for key in keys:
            self.get(key)

    def has_extended_api(self) -> bool:
        return False

    def _ask(
        self, kind: int, key: str, value: bytes, seconds: float = WAIT_SECONDS
    ) -> bytes | None:
        """The value under the key; None while there is none."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the deadline passed; no member put {key}")
        place = split(self._group.rendezvous)
        with socket.create_connection(place, min(left, STALL_SECONDS)) as sock:
            connection = Connection(sock, self._deadline)
            if introduce(connection, self._group.nonce) is not RelayStatus.READY:
                raise ProtocolError(
                    "the rendezvous could not prove that it knows the group's nonce"
                )
            name = key.encode()
            connection.send(REQUEST.pack(kind, len(name), len(value), seconds) + name + value)
            is_there, size = ANSWER.unpack(connection.receive(ANSWER.size))
            if size > max_value_bytes(self._group.world_size):
                raise ProtocolError(f"a value of {size} bytes")
            return connection.receive(size) if is_there else None


def max_value_bytes(world_size: int) -> int:
    """gloo puts about 150 bytes, and 8 for each member."""
    return 1024 + 64 * world_size


def host_tcp_store(listener: socket.socket, timeout: float) -> Store:
    """The sender's, on a socket that listens already."""
    host, port = listener.getsockname()[:2]
    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # the store closes it
    )


def connect_tcp_store(group: TransferGroup, timeout: timedelta) -> Store:
    """A member's. Raises OSError at once when nothing listens there.

    torch asks the name server about the address; without one that answers, each
    connection waits for the resolver's own timeout.
    """
    host, port = split(group.rendezvous)
    # TCPStore would try a closed port again and again; closed, it means that the group is gone.
    socket.create_connection((host, port), timeout.total_seconds()).close()
    store = TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
    # A list of the keys must not show the nonce.
    hidden = hashlib.sha256(group.nonce.encode()).hexdigest()
    store = PrefixStore(f"trimaran/{group.group_id}/{hidden}", store)
    store.set_timeout(timeout)
    return store
