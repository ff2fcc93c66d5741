"""The network of the tests is as slow and lossy as it says, or tests over it show nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.namespaces import Link, NamespaceHost, far_hosts

pytestmark = pytest.mark.e2e
DELAY_MS, LOSS, SEED = 10, 0.1, 7
COUNT = 200
ECHO = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
    here.bind((sys.argv[1], 9000))
    print("up", flush=True)
    while True:
        data, sender = here.recvfrom(100)
        here.sendto(data, sender)
"""
ASK = """
import json, socket, sys, time
took = {}
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
    here.connect((sys.argv[1], 9000))
    here.settimeout(float(sys.argv[3]))
    for number in range(int(sys.argv[2])):
        here.send(json.dumps([number, time.monotonic()]).encode())
    try:
        while True:
            number, sent = json.loads(here.recv(100))
            took[number] = time.monotonic() - sent
    except TimeoutError:
        print(json.dumps(sorted(took.items())))
"""


@pytest.fixture
def three() -> Iterator[list[NamespaceHost]]:
    with far_hosts("10.77.3", 3) as made:
        yield made


@pytest.fixture
def link(three: list[NamespaceHost]) -> Iterator[Link]:
    with Link(three, DELAY_MS, loss=LOSS, seed=SEED) as made:
        yield made


@pytest.fixture
def echo(three: list[NamespaceHost], link: Link) -> Iterator[NamespaceHost]:
    """Which sends every datagram back."""
    command = three[2].inside(sys.executable, "-c", ECHO, three[2].address)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"up\n"
        yield three[2]
        process.kill()


def ask(host: NamespaceHost, to: NamespaceHost, count: int = COUNT) -> dict[int, float]:
    """Datagrams of which the echo came: number -> seconds of the round trip."""
    command = host.inside(sys.executable, "-c", ASK, to.address, str(count), "2")
    done = subprocess.run(command, check=True, capture_output=True, timeout=60)
    return dict(json.loads(done.stdout))


def test_packets_come_late_or_never(three: list[NamespaceHost], echo: NamespaceHost) -> None:
    took = ask(three[0], echo)
    assert min(took.values()) >= 2 * DELAY_MS / 1000
    assert 0.7 < len(took) / COUNT < 0.9  # each way a tenth is lost


def test_a_partition_cuts_one_host_or_all_until_it_is_mended(
    three: list[NamespaceHost], link: Link, echo: NamespaceHost
) -> None:
    near, other, _ = three
    link.cut(other)
    assert ask(near, echo) and not ask(other, echo)
    link.cut()
    assert not ask(near, echo)
    link.mend()
    assert ask(near, echo) and ask(other, echo)
