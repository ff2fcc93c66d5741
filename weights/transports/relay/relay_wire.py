"""The relay's protocol: frames over TCP, big-endian, one request a connection.

No stream of gRPC, because its messages are copied in user space on both ends: on loopback a stream brings
about half of what a socket does, which is received straight into its place.

    server  hello      magic (8 bytes, ends with the protocol's version), nonce (32)
    puller  claim      nonce (32), HMAC-SHA256(key, "puller" + both nonces)
    server  welcome    status (1), HMAC-SHA256(key, "server" + status + both nonces)
    puller  request    length (4), then root (16), base root (16; zeros: blocks instead of
                       pieces), seconds left (8, IEEE 754), block numbers as first, end, … (4 each)
    server  block      1, number (4), size (8), the bytes
    server  end        2, reason (4), 0 (8); GONE at once after a block that may have changed while
                       it was sent

Blocks come in the order in which the server has them. The claim proves the
puller before anything is given out, the welcome proves the server; the labels
keep one from being played back as the other. A server that does not know the
puller closes the connection without a word. Bytes are checked against the
manifest's digests, which stop faults, not forgers. Where the run's services have
TLS, all of this goes through it; else nothing is encrypted.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum

from trimaran.types import Ranges
from weights.version.layout import numbers_of

MAGIC = b"TRIMRLY\x02"
NONCE_BYTES = 32
PROOF_BYTES = 32
LENGTH = struct.Struct(">I")
REQUEST = struct.Struct(">16s16sd")
FRAME = struct.Struct(">BIQ")
BLOCK, END = 1, 2
NO_BASE = bytes(16)
MAX_REQUEST_BYTES = 16 * 2**20
STEP_BYTES = 2**20
"""Handed to the kernel at a time, so that a slow link shows progress."""
STALL_SECONDS = 5.0
"""Without a byte of progress the other side counts as gone."""


class ProtocolError(ConnectionError):
    """The other side does not speak this protocol."""


class RelayStatus(IntEnum):
    READY = 1
    BUSY = 2
    """As many pullers are served as may be; try again."""


class Reason(IntEnum):
    """Why a server ends its answer."""

    COMPLETE = 0
    LACKS = 1
    """It does not hold the other blocks, or they did not land in time."""
    GONE = 2
    """It does not hold this version at all, or has begun to write over it."""


@dataclass(frozen=True, slots=True)
class RelayRequest:
    root: str
    base_root: str
    """Empty for blocks; else pieces of the delta from this root."""
    seconds: float
    """After which the puller does not wait any more."""
    blocks: Ranges

    def encode(self) -> bytes:
        base = bytes.fromhex(self.base_root) if self.base_root else NO_BASE
        bounds = [bound for ends in self.blocks for bound in ends]
        head = REQUEST.pack(bytes.fromhex(self.root), base, self.seconds)
        return head + struct.pack(f">{len(bounds)}I", *bounds)

    @classmethod
    def decode(cls, data: bytes) -> RelayRequest:
        """Raises ProtocolError for anything that `encode` does not make."""
        size = len(data) - REQUEST.size
        if size < 0 or size % 8:
            raise ProtocolError(f"a request of {len(data)} bytes")
        root, base, seconds = REQUEST.unpack_from(data)
        bounds = struct.unpack_from(f">{size // 4}I", data, REQUEST.size)
        if list(bounds) != sorted(set(bounds)) or not 0 < seconds < float("inf"):
            raise ProtocolError("a request with bad ranges or seconds")
        blocks = tuple(zip(bounds[::2], bounds[1::2], strict=True))
        return cls(root.hex(), "" if base == NO_BASE else base.hex(), seconds, blocks)

    def numbers(self, limit: int) -> list[int]:
        """Raises ProtocolError for a block number from `limit` on: no manifest is so long."""
        if self.blocks and self.blocks[-1][1] > limit:
            raise ProtocolError(f"a request for block {self.blocks[-1][1] - 1}")
        return list(numbers_of(self.blocks))


class Connection:
    """A socket of which every wait ends: after `stall` seconds without progress, or at the deadline."""

    def __init__(self, sock: socket.socket, deadline: float, stall: float = STALL_SECONDS) -> None:
        self.deadline = deadline
        """time.monotonic()."""
        self._sock = sock
        self._stall = stall
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            self._arm()
            view = view[self._sock.send(view[:STEP_BYTES]) :]

    def receive(self, size: int) -> bytes:
        data = bytearray(size)
        self.receive_into(memoryview(data))
        return bytes(data)

    def receive_into(self, view: memoryview) -> None:
        """Raises ConnectionError when the other side ends before."""
        while view:
            self._arm()
            size = self._sock.recv_into(view[:STEP_BYTES])
            if not size:
                raise ConnectionError("the connection ended in the middle")
            view = view[size:]

    def _arm(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline passed")
        self._sock.settimeout(min(left, self._stall))


def greet(connection: Connection, key: str) -> bytes | None:
    """The server's part up to the claim: both nonces, or None when the puller does not know the key."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    connection.send(MAGIC + nonce)
    theirs = connection.receive(NONCE_BYTES)
    claim = connection.receive(PROOF_BYTES)
    nonces = nonce + theirs
    return nonces if hmac.compare_digest(claim, _prove(key, b"puller", nonces)) else None


def welcome(connection: Connection, key: str, nonces: bytes, status: RelayStatus) -> None:
    code = bytes([status])
    connection.send(code + _prove(key, b"server" + code, nonces))


def introduce(connection: Connection, key: str) -> RelayStatus | None:
    """The puller's part: the server's status, or None when the server does not know the key."""
    if connection.receive(len(MAGIC)) != MAGIC:
        raise ProtocolError("no relay of this version answers there")
    nonce = connection.receive(NONCE_BYTES)
    mine = secrets.token_bytes(NONCE_BYTES)
    nonces = nonce + mine
    connection.send(mine + _prove(key, b"puller", nonces))
    code = connection.receive(1)
    proof = connection.receive(PROOF_BYTES)
    if not hmac.compare_digest(proof, _prove(key, b"server" + code, nonces)):
        return None
    try:
        return RelayStatus(code[0])
    except ValueError:
        raise ProtocolError(f"status {code[0]}") from None


def _prove(key: str, label: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key.encode(), label + nonces, "sha256")
