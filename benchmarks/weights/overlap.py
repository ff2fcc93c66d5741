"""What it gains that a receiver's broadcasts, copies and digests are under way at the same time.

The link is a clock: a bucket has passed after its bytes at the copy's own measured rate, without work for
any core. The device's buckets lie in host memory, so a copy is one between two places there. Copies and
digests are real, and so is the pump that runs them.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from services.weight_sync.data.digest import digest_tensor
from services.weight_sync.data.layout import make_layout
from services.weight_sync.transports.group_carrier import DIGEST_THREADS
from services.weight_sync.transports.pump import Pump
from services.weight_sync.transports.streams import Stream
from trimaran.types import TensorInfo

BUCKET_BYTES, NUM_BUCKETS = 64 << 20, 12
ROUNDS = 5


class _Device:
    """Whose memory is a part of the host's."""

    on_host = False

    def activate(self, index: int) -> None:
        """There is none."""

    def use_own_stream(self) -> None:
        """There is none."""

    def torch_device(self, index: int) -> torch.device:
        return torch.device("cpu")


class _Link:
    """One broadcast after the other, in the order in which they begin. A work is the time of its end."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free = rate, 0.0

    def start(self, bucket: torch.Tensor) -> float:
        self._free = max(self._free, time.perf_counter()) + bucket.numel() / self._rate
        return self._free

    def finish(self, work: float) -> None:
        time.sleep(max(work - time.perf_counter(), 0.0))


def _wait(is_done: Any) -> None:
    while not is_done():
        time.sleep(0.0002)


class Overlap:
    """Example: Overlap("xxh3-128").measure()  # bytes a second: in turn, overlapped, copy, digest"""

    def __init__(self, digest_name: str) -> None:
        self._digest_name = digest_name
        size = BUCKET_BYTES * NUM_BUCKETS
        self._layout = make_layout([TensorInfo("w", "U8", (size,))])
        self._shadow = torch.zeros(size, dtype=torch.uint8)
        self._buckets = torch.randint(0, 256, (2, BUCKET_BYTES), dtype=torch.uint8)

    def measure(self) -> tuple[float, float, float, float]:
        copy = self._rate(lambda: [self._copy(n) for n in range(NUM_BUCKETS)])
        digest = self._rate(lambda: [self._digest(n) for n in range(NUM_BUCKETS)])
        in_turn = self._rate(lambda: self._take_in_turn(_Link(copy)))
        overlapped = self._rate(lambda: self._take_overlapped(_Link(copy)))
        return in_turn, overlapped, copy, digest

    def _rate(self, work: Any) -> float:
        seconds: list[float] = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
        return BUCKET_BYTES * NUM_BUCKETS / min(seconds)

    def _place(self, number: int) -> torch.Tensor:
        return self._shadow[number * BUCKET_BYTES :][:BUCKET_BYTES]

    def _copy(self, number: int) -> None:
        self._place(number).copy_(self._buckets[number % 2])

    def _digest(self, number: int) -> None:
        digest_tensor(self._digest_name, self._place(number))

    def _take_in_turn(self, link: _Link) -> None:
        """Two broadcasts under way; the thread that begins them copies and digests."""
        works: list[float] = []
        for number in range(NUM_BUCKETS):
            works.append(link.start(self._buckets[number % 2]))
            if number:
                self._land(link, works, number - 1)
        self._land(link, works, NUM_BUCKETS - 1)

    def _land(self, link: _Link, works: list[float], number: int) -> None:
        link.finish(works[number])
        self._copy(number)
        self._digest(number)

    def _take_overlapped(self, link: _Link) -> None:
        device: Any = _Device()
        stream = Stream(self._layout, self._shadow, self._layout)
        pump = Pump(stream, BUCKET_BYTES, device, 0, link.start, _wait)
        with ThreadPoolExecutor(DIGEST_THREADS) as threads:

            def arrived(end: int) -> None:
                threads.submit(self._digest, end // BUCKET_BYTES - 1)

            try:
                pump.receive(link.finish, arrived)
            finally:
                pump.close(1.0)
