"""Hosts that tests run processes on: network namespaces of this machine, each with its own address.

with hosts("10.77.0", 2) as (first, second):
    subprocess.run(first.inside("ping", "-c", "1", second.address), check=True)
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class NamespaceHost:
    name: str
    address: str
    interface: str

    def inside(self, *command: str) -> list[str]:
        """The command, as it runs there."""
        return ["nsenter", f"--net=/run/netns/{self.name}", *command]


@contextmanager
def hosts(network: str, count: int) -> Iterator[list[NamespaceHost]]:
    """`network`: the first three numbers of their addresses, network.1 and so on. Skips the test where
    namespaces may not be made.

    The interfaces are called differently, wire0, wire1 and so on, as on real hosts of several makes.
    """
    with ExitStack() as stack:
        mark = f"tri{os.getpid()}"
        bridge = f"{mark}s"
        _make(stack, bridge)
        _run("ip", "-n", bridge, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", bridge, "link", "set", "bridge", "up")
        made: list[NamespaceHost] = []
        for number in range(count):
            host = NamespaceHost(f"{mark}h{number}", f"{network}.{number + 1}", f"wire{number}")
            _make(stack, host.name)
            other = f"port{number}"
            end = ("type", "veth", "peer", "name", other, "netns", bridge)
            _run("ip", "-n", host.name, "link", "add", host.interface, *end)
            _run("ip", "-n", bridge, "link", "set", other, "master", "bridge", "up")
            address = f"{host.address}/24"
            _run("ip", "-n", host.name, "addr", "add", address, "dev", host.interface)
            _run("ip", "-n", host.name, "link", "set", host.interface, "up")
            _run("ip", "-n", host.name, "link", "set", "lo", "up")
            made.append(host)
        yield made


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
