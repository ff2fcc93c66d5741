"""A slow and lossy network between namespaces, made in user space, as tc's netem does in kernels that have it.

    python -m tests.link MBIT_PER_SECOND DELAY_MS LOSS SEED NAMESPACE=ADDRESS NAMESPACE=ADDRESS ...

Each end is a TUN device inside its namespace. This process is the switch: it takes every packet out
of one device and puts it into the one that has the packet's destination, at the rate and after the
delay that each sender's wire has (so a round trip takes twice the delay), and drops the share LOSS of
them, drawn from SEED. A queue that is full drops what comes. Packets are large (MTU), so that Python
can keep up: a byte is lost less often than with the usual 1500.

It says "up" once it works, and then obeys lines: "cut" (all packets vanish, as in a partition), "cut
ADDRESS" (those from and to one host) and "fix"; it ends with its input.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET_BYTES = 9000
MTU = PACKET_BYTES - 500
QUEUE_BYTES = 8 << 20
"""More than two seconds at 100 Mbit/s would be waited for: one bandwidth-delay product and some."""
IP_VERSION_4 = 4


@dataclass
class End:
    """One host's side."""

    device: int
    address: str
    is_cut: bool = False
    free_at: float = 0.0
    """When its wire can take the next packet."""


@dataclass
class Switch:
    """Which packets are under way. Seconds of time.monotonic."""

    ends: dict[str, End]
    bytes_per_second: float
    delay: float
    loss: float
    random: random.Random
    _under_way: list[tuple[float, int, End, End, bytes]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def take(self, source: End, now: float) -> None:
        """Everything that waits at one end."""
        while True:
            try:
                packet = os.read(source.device, PACKET_BYTES)
            except BlockingIOError:
                return
            target = self.ends.get(destination(packet))
            waiting = max(source.free_at - now, 0.0) * self.bytes_per_second
            if target is None or waiting > QUEUE_BYTES or self.random.random() < self.loss:
                continue
            source.free_at = max(source.free_at, now) + len(packet) / self.bytes_per_second
            due = source.free_at + self.delay
            heapq.heappush(self._under_way, (due, next(self._numbers), source, target, packet))

    def give(self, now: float) -> None:
        """What has arrived."""
        while self._under_way and self._under_way[0][0] <= now:
            _, _, source, target, packet = heapq.heappop(self._under_way)
            if not (source.is_cut or target.is_cut):
                os.write(target.device, packet)

    def obey(self, words: list[str]) -> None:
        """`words`: such as ["cut", "10.0.0.2"]."""
        named = words[1:] or list(self.ends)
        for address in named:
            self.ends[address].is_cut = words[0] == "cut"

    def next_due(self) -> float | None:
        return self._under_way[0][0] if self._under_way else None


def destination(packet: bytes) -> str:
    """Empty for what is not IPv4."""
    return socket.inet_ntoa(packet[16:20]) if packet[0] >> 4 == IP_VERSION_4 else ""


def run(switch: Switch) -> None:
    devices = {end.device: end for end in switch.ends.values()}
    print("up", flush=True)
    while True:
        due = switch.next_due()
        timeout = None if due is None else max(due - time.monotonic(), 0.0)
        readable, _, _ = select.select([0, *devices], [], [], timeout)
        now = time.monotonic()
        switch.give(now)
        for device in readable:
            if device in devices:
                switch.take(devices[device], now)
        if 0 in readable:
            lines = os.read(0, 4096).decode().splitlines()
            if not lines:
                return
            for line in lines:
                switch.obey(line.split())


def make_end(number: int, namespace: str, address: str) -> End:
    """The device lives in the namespace, as wire0, wire1 and so on, and ends with us."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    made, name = f"tri{os.getpid()}x{number}"[:15], f"wire{number}"
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", made.encode(), IFF_TUN | IFF_NO_PI))
    _ip("link", "set", made, "netns", namespace, "name", name)
    inside = ("-n", namespace)
    _ip(*inside, "address", "add", f"{address}/24", "dev", name)
    _ip(*inside, "link", "set", name, "mtu", str(MTU), "up")
    return End(descriptor, address)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def main(rate: str, delay_ms: str, loss: str, seed: str, *hosts: str) -> None:
    pairs = (host.split("=") for host in hosts)
    ends = [make_end(number, *pair) for number, pair in enumerate(pairs)]
    run(
        Switch(
            {end.address: end for end in ends},
            float(rate) * 1e6 / 8,
            float(delay_ms) / 1000,
            float(loss),
            random.Random(int(seed)),
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
