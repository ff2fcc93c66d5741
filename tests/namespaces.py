"""Hosts that tests run processes on: network namespaces of this machine, each with its own address.

with hosts("10.77.0", 2) as (first, second):
    subprocess.run(first.inside("ping", "-c", "1", second.address), check=True)

with far_hosts("10.77.0", 3) as far, Link(far, delay_ms=10, loss=0.01) as link:
    link.cut(far[1])
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

CLONE_NEWNET = 0x40000000
"""Of <sched.h>."""


@dataclass(frozen=True)
class NamespaceHost:
    name: str
    address: str
    interface: str

    def inside(self, *command: str) -> list[str]:
        """The command, as it runs there."""
        return ["nsenter", f"--net=/run/netns/{self.name}", *command]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread, and what it starts, is there meanwhile."""
        with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{self.name}") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(here.fileno())


@contextmanager
def hosts(network: str, count: int) -> Iterator[list[NamespaceHost]]:
    """Joined by a bridge that loses nothing. `network`: the first three numbers of their addresses,
    network.1 and so on. Skips the test where namespaces may not be made.

    The interfaces are called differently, wire0, wire1 and so on, as on real hosts of several makes.
    """
    with ExitStack() as stack:
        bridge = f"tri{os.getpid()}s"
        _make(stack, bridge)
        _run("ip", "-n", bridge, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", bridge, "link", "set", "bridge", "up")
        made = _make_hosts(stack, network, count)
        for number, host in enumerate(made):
            other = f"port{number}"
            end = ("type", "veth", "peer", "name", other, "netns", bridge)
            _run("ip", "-n", host.name, "link", "add", host.interface, *end)
            _run("ip", "-n", bridge, "link", "set", other, "master", "bridge", "up")
            address = f"{host.address}/24"
            _run("ip", "-n", host.name, "addr", "add", address, "dev", host.interface)
            _run("ip", "-n", host.name, "link", "set", host.interface, "up")
        yield made


@contextmanager
def far_hosts(network: str, count: int) -> Iterator[list[NamespaceHost]]:
    """The same, joined by nothing: they have their addresses while a `Link` is open. Skips the test
    also where there are no TUN devices."""
    if not Path("/dev/net/tun").exists():
        pytest.skip("this kernel has no TUN devices, of which the link between hosts is made")
    with ExitStack() as stack:
        yield _make_hosts(stack, network, count)


class Link:
    """What joins far hosts: a process that hands on each packet late, or not at all (tests/link.py)."""

    def __init__(
        self,
        hosts: Sequence[NamespaceHost],
        delay_ms: float,
        mbit: float = 1000,
        loss: float = 0.0,
        seed: int = 1,
    ) -> None:
        """`delay_ms`: each way. `mbit`: a second, of each host's wire. `loss`: share of the packets."""
        ends = [f"{host.name}={host.address}" for host in hosts]
        numbers = map(str, (mbit, delay_ms, loss, seed))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.link", *numbers, *ends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self._process.stdout and self._process.stdout.readline() == "up\n"

    def cut(self, host: NamespaceHost | None = None) -> None:
        """A partition: this host from all others, or everybody from everybody."""
        self._say("cut", host)

    def mend(self, host: NamespaceHost | None = None) -> None:
        self._say("mend", host)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _say(self, word: str, host: NamespaceHost | None) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{word} {host.address if host else ''}\n")


def _enter(namespace: int) -> None:
    """os.setns, which Python 3.11 does not have."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _make_hosts(stack: ExitStack, network: str, count: int) -> list[NamespaceHost]:
    """With nothing but loopback."""
    made: list[NamespaceHost] = []
    for number in range(count):
        name = f"tri{os.getpid()}h{number}"
        _make(stack, name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
        made.append(NamespaceHost(name, f"{network}.{number + 1}", f"wire{number}"))
    return made


def _make(stack: ExitStack, name: str) -> None:
    try:
        done = subprocess.run(
            ["ip", "netns", "add", name], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no `ip`; Debian's package iproute2 brings it")
    if done.returncode:
        pytest.skip(f"network namespaces may not be made here ({done.stderr.strip()}); run as root")
    stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=False)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
