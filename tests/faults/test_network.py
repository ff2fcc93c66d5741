"""Weights between machines that a slow network joins: namespaces with a wire in between."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.faults.endpoint import NUM_TENSORS, TENSOR_BYTES
from tests.namespaces import Link, NamespaceHost, far_hosts

SENDER, RECEIVER = "10.203.7.1", "10.203.7.2"
NUM_BYTES = NUM_TENSORS * TENSOR_BYTES
RATE_MBIT = 100


class Net:
    """Two far hosts: a sender on one, a receiver on the other."""

    def __init__(self, stack: ExitStack, pair: list[NamespaceHost]) -> None:
        self._stack, self.pair = stack, pair

    def start(self, end: int, *words: str) -> subprocess.Popen[str]:
        """A Python of its own on that host."""
        command = self.pair[end].inside(sys.executable, *words)
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def stage(self) -> subprocess.Popen[str]:
        """Begins; the receiver says at its end which root it has, and after how many seconds."""
        sender = self.start(0, "-m", "tests.faults.endpoint", "sender", SENDER)
        receiver = self.start(1, "-m", "tests.faults.endpoint", "receiver", RECEIVER)
        assert sender.stdout and receiver.stdin
        offer = sender.stdout.readline()
        receiver.stdin.write(offer)
        receiver.stdin.flush()
        self.root = json.loads(offer)["manifest"]["root"]
        return receiver

    def staged(self, receiver: subprocess.Popen[str]) -> float:
        """The seconds."""
        assert receiver.stdout
        root, seconds = receiver.stdout.readline().split()
        assert root == self.root
        return float(seconds)

    def received(self) -> int:
        """Bytes that have come to the receiver's side of the wire so far."""
        receiver = self.pair[1]
        command = receiver.inside("cat", "/proc/net/dev")
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        [counts] = [line.split() for line in lines.splitlines() if receiver.interface in line]
        return int(counts[1])


@pytest.fixture
def net() -> Iterator[Net]:
    with far_hosts("10.203.7", 2) as pair, ExitStack() as stack:
        yield Net(stack, pair)


def test_a_relay_goes_on_after_a_partition_with_what_is_missing(net: Net) -> None:
    with Link(net.pair, delay_ms=5, mbit=RATE_MBIT) as wire:
        receiver = net.stage()
        while net.received() < NUM_BYTES // 2:
            assert receiver.poll() is None
        wire.cut()
        time.sleep(2.0)
        assert receiver.poll() is None
        wire.mend()
        net.staged(receiver)
        # Half of it had arrived, and at most what was under way travels twice.
        assert net.received() < 1.35 * NUM_BYTES


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


def test_a_relay_uses_a_link_of_200_ms_and_100_mbit(net: Net) -> None:
    """Against one plain TCP connection that copies the same bytes over the same wire."""
    with Link(net.pair, delay_ms=100, mbit=RATE_MBIT):
        seconds = net.staged(net.stage())
        taking = net.start(1, "-c", TAKE, RECEIVER, str(NUM_BYTES))
        assert taking.stdout and taking.stdout.readline() == "up\n"
        begun = time.monotonic()
        assert net.start(0, "-c", COPY, RECEIVER, "7000", str(NUM_BYTES)).wait() == 0
        assert seconds < (time.monotonic() - begun) / 0.4
