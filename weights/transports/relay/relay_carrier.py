"""The receiving side of the relay: pulls blocks from one peer after another until it has them all.

Whatever has landed is kept; after a broken connection only what is missing is
asked for, wherever it is to be had.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

from trimaran.errors import TransferError
from trimaran.run.network import family_of, split
from trimaran.trust.tls import SocketTls
from trimaran.types import Peer, RelaySource
from weights.transports.carrier import Carrier, CarryJob, WrongBlockError
from weights.transports.relay.relay_wire import (
    BLOCK,
    END,
    FRAME,
    LENGTH,
    STALL_SECONDS,
    Connection,
    Reason,
    RelayRequest,
    RelayStatus,
    introduce,
)
from weights.version.layout import to_ranges

PATIENCE_SECONDS = 3.0
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
"""Between two rounds over the peers in which no block came."""


class _DroppedError(Exception):
    """This peer is not asked again in this stage."""


class _BusyError(Exception):
    """This peer may have time later."""


@dataclass(slots=True)
class _Candidate:
    peer: Peer
    fault: str = "did not answer in time"
    failing_since: float | None = None
    """time.monotonic()."""
    usable: bool = True


@dataclass(slots=True)
class _Pull:
    """One job's progress."""

    job: CarryJob[RelaySource]
    patience: float
    stall: float
    tls: SocketTls | None
    missing: dict[int, memoryview] = field(default_factory=dict)
    """Where the bytes of each block that has not landed belong."""


class RelayCarrier(Carrier[RelaySource]):
    def __init__(
        self,
        patience: float = PATIENCE_SECONDS,
        stall: float = STALL_SECONDS,
        tls: SocketTls | None = None,
    ) -> None:
        """`patience`: a peer that still fails so many seconds after its first failure, without a block
        in between, is not asked again in this stage. It may be about to begin with the version itself,
        or the network between us is away for a moment.

        `stall`: without a byte for so many seconds a peer counts as gone.
        """
        self._patience = patience
        self._stall = stall
        self._tls = tls

    def carry(self, job: CarryJob[RelaySource]) -> None:
        pull = _begin(_Pull(job, self._patience, self._stall, self._tls))
        candidates = [_Candidate(peer) for peer in job.source.peers]
        pause = FIRST_PAUSE_SECONDS
        while pull.missing:
            before = len(pull.missing)
            for candidate in candidates:
                if pull.missing and candidate.usable:
                    _ask(pull, candidate)
            if not pull.missing:
                return
            if not any(candidate.usable for candidate in candidates):
                raise TransferError(_describe(pull, candidates, "no peer is left to ask"))
            if len(pull.missing) < before:
                pause = FIRST_PAUSE_SECONDS
                continue
            job.stop.pause(min(pause, max(job.deadline - time.monotonic(), 0.0)))
            if time.monotonic() >= job.deadline:
                raise TransferError(_describe(pull, candidates, "the deadline passed"))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _begin(pull: _Pull) -> _Pull:
    """With all blocks missing but the empty ones."""
    job = pull.job
    view = job.buffer.numpy().data
    for piece in job.pieces():
        if piece.start == piece.end:
            job.land(piece.block.number)
        else:
            pull.missing[piece.block.number] = view[piece.start : piece.end]
    return pull


def _ask(pull: _Pull, candidate: _Candidate) -> None:
    """One connection. What it brings is kept, whatever its end."""
    before, failed = len(pull.missing), False
    try:
        _pull_from(pull, candidate.peer)
    except _DroppedError as error:
        candidate.fault, candidate.usable = str(error), False
    except _BusyError:
        candidate.fault = "is busy"
    except OSError as error:
        pull.job.stop.check()  # whose interrupt may have been the cause
        failed = True
        if time.monotonic() < pull.job.deadline:  # else an earlier fault says more
            candidate.fault = str(error) or type(error).__name__
    if not failed or len(pull.missing) < before:
        candidate.failing_since = None
    elif candidate.failing_since is None:
        candidate.failing_since = time.monotonic()
    since = candidate.failing_since
    if since is not None and time.monotonic() - since > pull.patience:
        candidate.usable = False


def _pull_from(pull: _Pull, peer: Peer) -> None:
    try:
        host, port = split(peer.relay)
    except ValueError:
        raise _DroppedError("has no relay") from None
    deadline = pull.job.deadline
    with socket.socket(family_of(host), socket.SOCK_STREAM) as sock:

        def interrupt() -> None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

        with pull.job.stop.interrupting(interrupt):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the deadline passed")
            sock.settimeout(min(left, pull.stall))
            sock.connect((host, port))
            # Of a copy: `interrupt` shuts the socket itself down.
            with pull.tls.connect(sock.dup(), host) if pull.tls else sock as shown:
                _pull_through(pull, peer, Connection(shown, deadline, pull.stall))


def _pull_through(pull: _Pull, peer: Peer, connection: Connection) -> None:
    status = introduce(connection, peer.key)
    if status is None:
        raise _DroppedError("could not prove that it knows its key")
    if status is RelayStatus.BUSY:
        raise _BusyError
    _request(pull, connection)
    while _take_frame(pull, connection):
        pass


def _request(pull: _Pull, connection: Connection) -> None:
    delta = pull.job.source.delta
    seconds = max(connection.deadline - time.monotonic(), 0.001)
    base_root = delta.base_root if delta else ""
    request = RelayRequest(pull.job.root, base_root, seconds, to_ranges(pull.missing)).encode()
    connection.send(LENGTH.pack(len(request)) + request)


def _take_frame(pull: _Pull, connection: Connection) -> bool:
    """False after the last one. Raises ConnectionError when it leaves blocks out."""
    kind, number, size = FRAME.unpack(connection.receive(FRAME.size))
    if kind == END:
        if pull.missing:
            gone = number == Reason.GONE
            raise ConnectionError("holds other weights by now" if gone else "lacks some blocks")
        return False
    target = pull.missing.get(number)
    if kind != BLOCK or target is None or size != len(target):
        raise _DroppedError(f"sent block {number} with {size} bytes, which was not asked for")
    connection.receive_into(target)
    try:
        pull.job.land(number)
    except WrongBlockError as error:
        # The peer is to blame unless it says next that it has begun to write over its weights.
        if connection.receive(FRAME.size) == FRAME.pack(END, Reason.GONE, 0):
            raise ConnectionError("began to write over its weights") from None
        raise _DroppedError(str(error)) from None
    del pull.missing[number]
    return True


def _describe(pull: _Pull, candidates: list[_Candidate], why: str) -> str:
    peers = "; ".join(f"{one.peer.relay}: {one.fault}" for one in candidates) or "none was named"
    return f"relay: {why}, {len(pull.missing)} blocks are missing. Peers: {peers}"
