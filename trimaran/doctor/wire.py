"""How doctors of several hosts talk: lines of JSON over TCP, behind a proof of the same token.

The token itself never travels: each side signs both sides' random numbers with it. Beyond loopback
what follows travels by TLS, or over a network that the operator trusts: the configuration, findings,
times, and zeros to measure with.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from dataclasses import dataclass
from typing import Any, cast

from trimaran.errors import InputError, UnauthenticatedError, UnavailableError
from trimaran.network import split
from trimaran.tls import socket_tls
from trimaran.trust import Trust

FORM = "trimaran-doctor-1"
MAX_LINE = 4 << 20
CONNECT_SECONDS, CALL_SECONDS = 10.0, 30.0
CHUNK = bytes(1 << 20)


@dataclass(slots=True)
class Line:
    """One connection, after the proof.

    Example: with dial("10.0.0.2:7990", trust) as line: line.ask({"ask": "clock"})
    """

    socket: socket.socket
    _rest: bytes = b""

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, tree: dict[str, Any]) -> None:
        self.socket.sendall(json.dumps(tree).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """Raises UnavailableError for an end, and for what is none of ours."""
        while b"\n" not in self._rest:
            read = self.socket.recv(1 << 16)
            if not read or len(self._rest) > MAX_LINE:
                raise UnavailableError("the other side broke off")
            self._rest += read
        text, _, self._rest = self._rest.partition(b"\n")
        try:
            tree = json.loads(text)
        except ValueError:
            tree = None
        if not isinstance(tree, dict):
            raise UnavailableError("what listens there is no trimaran doctor")
        return cast(dict[str, Any], tree)

    def ask(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Raises UnavailableError with what the other side complains of."""
        self.send(tree)
        answer = self.receive()
        if "error" in answer:
            raise UnavailableError(str(answer["error"]))
        return answer

    def receive_bytes(self, count: int) -> None:
        """Reads and forgets them."""
        left, buffer = count - len(self._rest), bytearray(len(CHUNK))
        self._rest = b""
        while left > 0:
            read = self.socket.recv_into(buffer, min(left, len(buffer)))
            if not read:
                raise UnavailableError("the other side broke off")
            left -= read


def dial(address: str, trust: Trust) -> Line:
    """Raises UnavailableError, UnauthenticatedError, or InputError for what is no host:port, and beyond
    loopback without token and TLS."""
    try:
        host, port = split(address)
    except ValueError:
        host, port = "", 0
    if not host:
        raise InputError(f"--host {address}: give HOST:PORT, where trimaran doctor --listen runs")
    try:
        trust.check_address(address)
    except InputError as error:
        raise InputError(f"--host {error}") from None
    tls = socket_tls(trust)
    try:
        connection = socket.create_connection((host, port), CONNECT_SECONDS)
        line = Line(tls.connect(connection, host) if tls else connection)
    except OSError as error:
        raise UnavailableError(f"{address}: {error.strerror or error}") from None
    line.socket.settimeout(CALL_SECONDS)
    line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    nonce = secrets.token_hex(16)
    try:
        hello = line.receive()
        if hello.get("form") != FORM:
            raise UnavailableError(f"{address}: speaks {hello.get('form')!r}, not {FORM}")
        theirs = str(hello.get("nonce"))
        line.send({"nonce": nonce, "proof": _proof(trust.token, "caller", theirs, nonce)})
        answer = str(line.receive().get("proof"))
        if not hmac.compare_digest(answer, _proof(trust.token, "listener", theirs, nonce)):
            raise UnauthenticatedError(f"{address}: has another token than --token-file here")
    except OSError as error:
        line.socket.close()
        raise UnavailableError(f"{address}: {error.strerror or error}") from None
    except BaseException:
        line.socket.close()
        raise
    return line


def greet(line: Line, token: str) -> None:
    """The listener's side. Raises UnauthenticatedError."""
    nonce = secrets.token_hex(16)
    line.send({"form": FORM, "nonce": nonce})
    answer = line.receive()
    theirs = str(answer.get("nonce"))
    is_proven = hmac.compare_digest(
        str(answer.get("proof")), _proof(token, "caller", nonce, theirs)
    )
    line.send({"proof": _proof(token, "listener", nonce, theirs) if is_proven else ""})
    if not is_proven:
        raise UnauthenticatedError("a caller has another token")


def clock_offset(line: Line) -> tuple[float, float]:
    """Seconds by which the other side's clock is ahead, and how far that may be wrong: half of the
    shortest round trip, as NTP has it."""
    best: tuple[float, float] | None = None
    for _ in range(9):
        start, before = time.monotonic(), time.time()
        there = float(line.ask({"ask": "clock"})["time"])
        trip = time.monotonic() - start
        if best is None or trip / 2 < best[1]:
            best = there - (before + trip / 2), trip / 2
    assert best
    return best


def _proof(token: str, side: str, listener: str, caller: str) -> str:
    return hmac.new(
        token.encode(), f"{FORM}/{side}/{listener}/{caller}".encode(), "sha256"
    ).hexdigest()
