"""A slow wire between two network namespaces, made in user space.

    python -m tests.faults.link NAMESPACE ADDRESS NAMESPACE ADDRESS MBIT_PER_SECOND DELAY_MS

Each end is a TUN device inside its namespace; this process takes every packet
out of one and puts it into the other at the rate and after the delay that the
wire has, as tc's netem does in kernels that have it. A queue that is full drops
what comes. It says "up" once it works, and then obeys the lines "cut" (packets
vanish, both ways, as in a partition) and "mend"; it ends with its input.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import select
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET_BYTES = 9000
QUEUE_BYTES = 8 << 20
"""More than two seconds at 100 Mbit/s would be waited for: one bandwidth-delay product and some."""


class Direction:
    def __init__(self, source: int, target: int, bytes_per_second: float, delay: float) -> None:
        self.source, self.target = source, target
        self._rate, self._delay = bytes_per_second, delay
        self._free_at = 0.0
        """When the wire can take the next packet."""
        self._under_way: list[tuple[float, int, bytes]] = []
        self._numbers = itertools.count()

    def take(self, now: float, connected: bool) -> None:
        """Everything that waits at the near end."""
        while True:
            try:
                packet = os.read(self.source, PACKET_BYTES)
            except BlockingIOError:
                return
            waiting = max(self._free_at - now, 0.0) * self._rate
            if not connected or waiting > QUEUE_BYTES:
                continue
            self._free_at = max(self._free_at, now) + len(packet) / self._rate
            due = self._free_at + self._delay
            heapq.heappush(self._under_way, (due, next(self._numbers), packet))

    def give(self, now: float, connected: bool) -> None:
        """What has arrived at the far end."""
        while self._under_way and self._under_way[0][0] <= now:
            _, _, packet = heapq.heappop(self._under_way)
            if connected:
                os.write(self.target, packet)

    def next_due(self) -> float | None:
        return self._under_way[0][0] if self._under_way else None


def run(ends: list[tuple[str, str]], mbit_per_second: float, delay_ms: float) -> None:
    first, second = (_make_end(number, *end) for number, end in enumerate(ends))
    rate, delay = mbit_per_second * 1e6 / 8, delay_ms / 1000
    directions = [Direction(first, second, rate, delay), Direction(second, first, rate, delay)]
    connected = True
    print("up", flush=True)
    while True:
        dues = [due for one in directions if (due := one.next_due()) is not None]
        timeout = max(min(dues) - time.monotonic(), 0.0) if dues else None
        readable, _, _ = select.select([0, first, second], [], [], timeout)
        now = time.monotonic()
        for direction in directions:
            direction.give(now, connected)
            if direction.source in readable:
                direction.take(now, connected)
        if 0 in readable:
            words = os.read(0, 4096).decode().split()
            if not words:
                return
            connected = words[-1] != "cut"


def _make_end(number: int, namespace: str, address: str) -> int:
    """The device's descriptor; the device itself lives in the namespace and ends with us."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = f"tri{os.getpid()}x{number}"[:15]
    request = struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI)
    fcntl.ioctl(descriptor, TUNSETIFF, request)
    _ip("link", "set", name, "netns", namespace)
    inside = ("-n", namespace)
    _ip(*inside, "address", "add", f"{address}/24", "dev", name)
    _ip(*inside, "link", "set", name, "mtu", str(PACKET_BYTES - 500), "up")
    _ip(*inside, "link", "set", "lo", "up")
    return descriptor


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


if __name__ == "__main__":
    run([(sys.argv[1], sys.argv[2]), (sys.argv[3], sys.argv[4])], *map(float, sys.argv[5:7]))
