"""`trimaran doctor --listen`: answers doctors of other hosts, until its time is over.

What it does for whoever has the token and, with TLS, a certificate: it looks at its own host, tells the
time, takes bytes, sends bytes to a third host, and starts one end of a group of two. It changes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any

from trimaran.device import AUTOLOAD
from trimaran.doctor.examine import examine, facts_for_others
from trimaran.doctor.system import System
from trimaran.doctor.wire import CALL_SECONDS, CHUNK, CONNECT_SECONDS, Line, dial, greet
from trimaran.errors import InputError, TrimaranError, UnavailableError
from trimaran.launch.environment import network_environment
from trimaran.network import Host, family_of, read_interfaces, split
from trimaran.tls import socket_tls
from trimaran.trust import Trust, is_loopback

logger = logging.getLogger(__name__)

PROBE_SECONDS = 90.0
"""torch's import takes seconds on a busy host."""
BATCH, MAX_BATCHES = 8, 16
"""Chunks of 1 MiB that are sent before an answer, and how often at most."""
SEND_SECONDS = 2.0
"""After which no further batch is sent, on a slow link."""
NUM_ROUNDS = 20
PROBE = "services.weight_sync.transports.link_probe"


class Listener:
    """Example: listener = Listener("10.0.0.2:7990", trust); listener.serve(seconds=3600)"""

    def __init__(self, address: str, trust: Trust, now: Callable[[], float] = time.time) -> None:
        """Raises OSError where the address is not this host's, or is taken; InputError beyond loopback
        without token and TLS, and for files that cannot be used."""
        host, port = split(address)
        trust.check_address(address)
        self._trust, self._tls = trust, socket_tls(trust)
        self._socket = socket.create_server((host, port), family=family_of(host))
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._asks: dict[str, Callable[[Line, dict[str, Any]], dict[str, Any]]] = {
            "clock": lambda line, asked: {"time": now()},
            "examine": self._examine,
            "take": self._take,
            "send": self._send,
            "group": self._group,
        }

    def serve(self, seconds: float) -> None:
        """Returns after so many seconds."""
        end = time.monotonic() + seconds
        with self._socket:
            while (left := end - time.monotonic()) > 0:
                self._socket.settimeout(left)
                with suppress(TimeoutError):
                    line = Line(self._socket.accept()[0])
                    threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: Line) -> None:
        with line, suppress(OSError, TrimaranError):
            self._greet(line)
            while True:  # until the caller breaks off
                asked = line.receive()
                try:
                    answer = self._asks[asked["ask"]](line, asked)
                except KeyError as error:
                    answer = {"error": f"{error} is not known here: another release of trimaran?"}
                except (TrimaranError, OSError, ValueError) as error:
                    answer = {"error": str(error)}
                line.send(answer)

    def _greet(self, line: Line) -> None:
        """Raises OSError, UnavailableError and UnauthenticatedError."""
        caller = line.socket.getpeername()
        try:
            line.socket.settimeout(CONNECT_SECONDS)
            line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                line.socket = self._tls.accept(line.socket)
            line.socket.settimeout(CALL_SECONDS)
            greet(line, self._trust.token)
        except (OSError, TrimaranError) as error:
            logger.warning("%s: %s", caller, error)
            raise

    def _examine(self, line: Line, asked: dict[str, Any]) -> dict[str, Any]:
        from trimaran.config import parse_config

        config = parse_config(asked["config"]) if asked["config"] else None
        system = System(os.environ)
        found = examine(system, config, has_redis=bool(asked.get("has_redis")))
        findings = [finding.to_tree() for finding in found]
        return {"findings": findings, **facts_for_others(system, config)}

    def _take(self, line: Line, asked: dict[str, Any]) -> dict[str, Any]:
        line.receive_bytes(int(asked["bytes"]))
        return {}

    def _send(self, line: Line, asked: dict[str, Any]) -> dict[str, Any]:
        """To a third host, as the relay does: one TCP connection with large writes."""
        with dial(str(asked["to"]), self._trust) as other:
            start = time.monotonic()
            for _ in range(NUM_ROUNDS):
                other.ask({"ask": "clock"})
            seconds = (time.monotonic() - start) / NUM_ROUNDS
            batches, start = 0, time.monotonic()
            while batches < MAX_BATCHES and time.monotonic() - start < SEND_SECONDS:
                other.send({"ask": "take", "bytes": BATCH * len(CHUNK)})
                for _ in range(BATCH):
                    other.socket.sendall(CHUNK)
                other.receive()
                batches += 1
            taken = time.monotonic() - start
        return {"seconds": seconds, "bytes_per_second": batches * BATCH * len(CHUNK) / taken}

    def _group(self, line: Line, asked: dict[str, Any]) -> dict[str, Any]:
        """One end, of the library that goes with a kind of device; the side that hosts the rendezvous
        tells its port first."""
        if not (self._trust.is_network_trusted or is_loopback(self.host)):
            raise UnavailableError(
                "Gloo, NCCL and HCCL know no TLS, and the network is not trusted here"
            )
        meet = ("--meet", str(asked["meet"])) if asked.get("meet") else ()
        options = ("--device", str(asked["device"]), "--address", self.host, *meet)
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            first, failed = self._run_probe(line, options, said, is_host=not meet)
            if failed:
                said.seek(0)
                lines = [text for text in said if text.strip()]
                raise UnavailableError(
                    lines[-1].strip() if lines else "the other end did not come in time"
                )
        return json.loads(first)

    def _run_probe(
        self, line: Line, options: Sequence[str], said: IO[str], is_host: bool
    ) -> tuple[str, bool]:
        """Its first line, and whether it failed. `said`: takes its stderr, however much libraries print."""
        probe = subprocess.Popen(
            [sys.executable, "-m", PROBE, *options],
            env=probe_environment(self.host),
            stdin=subprocess.PIPE,  # nobody writes; it ends where this is closed, as with us
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        line.socket.settimeout(PROBE_SECONDS + CALL_SECONDS)
        timer = threading.Timer(PROBE_SECONDS, probe.kill)
        timer.start()
        try:
            assert probe.stdout
            first = probe.stdout.readline()
            if is_host and first:
                line.send(json.loads(first))
            return first, probe.wait() != 0
        finally:
            timer.cancel()
            with suppress(OSError):
                probe.kill()
            probe.wait()


def probe_environment(address: str) -> dict[str, str]:
    """As `trimaran serve` has it: libraries use the interface of this address, unless the shell says
    another one, and torch loads no plugin by itself."""
    try:
        own = [one for one in read_interfaces() if one.address == address]
    except (OSError, InputError):  # a sandbox without netlink
        own = []
    shown = network_environment(Host(address, own[0].name), {}) if own else {}
    return {**shown, **os.environ, AUTOLOAD: "0"}
