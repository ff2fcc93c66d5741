"""Weights between machines that a bad network joins: namespaces with a wire in between."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

from tests.namespaces import Link, NamespaceHost, far_hosts

SENDER, RECEIVER = "10.203.7.1", "10.203.7.2"
START_SECONDS = 60.0
NUM_TENSORS = 8
"""Of 1 MiB each."""
NUM_BYTES = NUM_TENSORS << 20
RATE_MBIT = 100


class Endpoint:
    """A process that answers one line a request."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._up: Future[dict[str, Any]] = Future()
        self._waiting = {0: self._up}
        self._number = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def until_up(self) -> None:
        self._up.result(START_SECONDS)

    def ask(self, do: str, **values: Any) -> Future[dict[str, Any]]:
        self._number += 1
        future = self._waiting[self._number] = Future()
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"id": self._number, "do": do, **values}) + "\n")
        return future

    def call(self, do: str, **values: Any) -> Any:
        reply = self.ask(do, **values).result(START_SECONDS)
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            reply = json.loads(line)
            self._waiting.pop(reply["id"]).set_result(reply)


class Net:
    """Two far hosts: a sender on one, a receiver on the other."""

    def __init__(self, stack: ExitStack, pair: list[NamespaceHost]) -> None:
        self._stack, self.pair = stack, pair

    def wire(self, mbit: float, delay_ms: float) -> Link:
        """`delay_ms`: each way."""
        return self._stack.enter_context(Link(self.pair, delay_ms, mbit))

    def endpoint(self, end: int, kind: str, address: str) -> Endpoint:
        module = "tests.faults.endpoint"
        command = self.pair[end].inside(sys.executable, "-m", module, kind, address)
        endpoint = Endpoint(*command)
        self._stack.callback(endpoint.close)
        return endpoint

    def received(self) -> int:
        """Bytes that have come to the receiver's side of the wire so far."""
        receiver = self.pair[1]
        command = receiver.inside("cat", "/proc/net/dev")
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        [counts] = [line.split() for line in lines.splitlines() if receiver.interface in line]
        return int(counts[1])


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    with far_hosts("10.203.7", 2) as pair, ExitStack() as stack:
        yield Net(stack, pair)


@pytest.fixture(scope="module")
def ends(net: Net) -> tuple[Endpoint, Endpoint]:
    """A sender and a receiver, each in its namespace."""
    wire = net.wire(1000, 0)  # an address to listen on, until each test brings its own wire
    sender, receiver = net.endpoint(0, "sender", SENDER), net.endpoint(1, "receiver", RECEIVER)
    sender.until_up()
    receiver.until_up()
    wire.close()
    return sender, receiver


def offer(sender: Endpoint, seed: int) -> dict[str, Any]:
    return sender.call("take", seed=seed, num_tensors=NUM_TENSORS)


def by_relay(offered: dict[str, Any]) -> dict[str, Any]:
    return {"blocks": offered["blocks"], "peers": [offered["peer"]]}


def wait_for(condition: Any, seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_collective_cut_by_a_partition_fails_in_time_and_stages_nothing(net, ends):
    sender, receiver = ends
    wire = net.wire(RATE_MBIT, 5)
    offered = offer(sender, 1)
    nonce = secrets.token_hex(8)
    group = {"group_id": 1, "nonce": nonce, "world_size": 2, "rendezvous": ""}
    group = sender.call("open", group=group, timeout=4)
    source = {"blocks": offered["blocks"], "group": group, "rank": 1}
    before = net.received()
    staging = receiver.ask("stage", manifest=offered["manifest"], source=source, timeout=4)
    sending = sender.ask("send", group_id=1, timeout=4)
    wait_for(lambda: net.received() - before > NUM_BYTES // 4)
    wire.cut()
    for future in (staging, sending):
        reply = future.result(START_SECONDS)
        assert "TransferError" in reply["error"]
        assert reply["seconds"] < 4 + 3  # the deadline, and what torch may take beyond it
    assert receiver.call("holds") == {"staged": False}
    # The survivor finishes the version by relay once the network is back.
    wire.mend()
    staged = receiver.call(
        "stage", manifest=offered["manifest"], source=by_relay(offered), timeout=30
    )
    assert staged["root"] == offered["manifest"]["root"]
    wire.close()


def test_a_relay_goes_on_after_a_partition_with_what_is_missing(net, ends):
    sender, receiver = ends
    wire = net.wire(RATE_MBIT, 5)
    offered = offer(sender, 2)
    before = net.received()
    staging = receiver.ask(
        "stage", manifest=offered["manifest"], source=by_relay(offered), timeout=40
    )
    wait_for(lambda: net.received() - before > NUM_BYTES // 2)
    wire.cut()
    time.sleep(2.0)
    assert not staging.done()
    wire.mend()
    reply = staging.result(START_SECONDS)
    assert reply["result"]["root"] == offered["manifest"]["root"], reply
    # Half of it had arrived, and at most what was under way travels twice.
    assert net.received() - before < 1.35 * NUM_BYTES
    wire.close()


COPY = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as there:
    there.sendall(bytes(int(sys.argv[3])))
    there.shutdown(socket.SHUT_WR)
    there.recv(1)
"""
TAKE = """
import socket, sys
with socket.create_server((sys.argv[1], 7000)) as server:
    print("up", flush=True)
    there, _ = server.accept()
    left = int(sys.argv[2])
    while left:
        left -= len(there.recv(1 << 20))
    there.send(b".")
"""


def test_a_relay_uses_a_link_of_200_ms_and_100_mbit(net, ends, record_property, capsys):
    """Against one plain TCP connection that copies the same bytes over the same wire."""
    sender, receiver = ends
    wire = net.wire(RATE_MBIT, 100)  # each way
    offered = offer(sender, 3)
    reply = receiver.ask(
        "stage", manifest=offered["manifest"], source=by_relay(offered), timeout=60
    ).result(90)
    assert reply["result"]["root"] == offered["manifest"]["root"], reply
    taking = subprocess.Popen(
        net.pair[1].inside(sys.executable, "-c", TAKE, RECEIVER, str(NUM_BYTES)),
        stdout=subprocess.PIPE,
    )
    assert taking.stdout
    taking.stdout.readline()
    begun = time.monotonic()
    subprocess.run(
        net.pair[0].inside(sys.executable, "-c", COPY, RECEIVER, "7000", str(NUM_BYTES)), check=True
    )
    plain = time.monotonic() - begun
    taking.wait()
    mbit = {"relay": 8e-6 * NUM_BYTES / reply["seconds"], "tcp": 8e-6 * NUM_BYTES / plain}
    for name, value in mbit.items():
        record_property(f"{name}_mbit_per_second", round(value, 1))
    with capsys.disabled():
        print(
            f"\n200 ms, {RATE_MBIT} Mbit/s, {NUM_BYTES >> 20} MiB: relay {mbit['relay']:.0f} Mbit/s,"
            f" plain TCP {mbit['tcp']:.0f} Mbit/s"
        )
    assert mbit["relay"] > 0.4 * mbit["tcp"]
    wire.close()
