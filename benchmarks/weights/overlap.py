"""What it gains that a receiver's broadcasts, copies and digests are under way at the same time.

Link and bus are clocks: a bucket has passed after its bytes at a rate, without work for any core, as where
a network card and a device move them. That rate is the one at which a thread digests here, so that no step is
much faster than another. The digests are real, and so is the pump that runs the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from trimaran.types import TensorInfo
from weights.transports.collective.group_carrier import DIGEST_THREADS
from weights.transports.collective.process_groups import IN_FLIGHT
from weights.transports.collective.pump import Pump
from weights.transports.streams import Stream
from weights.version.digest import digest_tensor
from weights.version.layout import BlockLayout, make_layout

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


class _Clock:
    """A link or a bus: one bucket after the other, in the order in which they begin. A work is the time of
    its end."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free = rate, 0.0

    def start(self, bucket: torch.Tensor) -> float:
        self._free = max(self._free, time.perf_counter()) + bucket.numel() / self._rate
        return self._free

    def finish(self, work: float) -> None:
        time.sleep(max(work - time.perf_counter(), 0.0))


class _Stream(Stream):
    """Whose buckets reach the host over a bus."""

    def __init__(self, layout: BlockLayout, buffer: torch.Tensor, bus: _Clock) -> None:
        super().__init__(layout, buffer, layout)
        self._bus = bus

    def write(self, start: int, end: int, bucket: torch.Tensor) -> None:
        self._bus.finish(self._bus.start(bucket))


def _wait(is_done: Callable[[], bool]) -> None:
    while not is_done():
        time.sleep(0.0002)


class Overlap:
    """Example: Overlap().measure()  # bytes a second: digest, in turn, overlapped"""

    def __init__(self) -> None:
        size = BUCKET_BYTES * NUM_BUCKETS
        self._layout = make_layout([TensorInfo("w", "U8", (size,))])
        self._shadow = torch.randint(0, 256, (size,), dtype=torch.uint8)
        self._bucket = torch.empty(BUCKET_BYTES, dtype=torch.uint8)

    def measure(self) -> tuple[float, float, float]:
        digest = self._rate(lambda: [self._digest(n) for n in range(NUM_BUCKETS)])
        in_turn = self._rate(lambda: self._take_in_turn(_Clock(digest), _Clock(digest)))
        overlapped = self._rate(lambda: self._take_overlapped(_Clock(digest), _Clock(digest)))
        return digest, in_turn, overlapped

    def _rate(self, work: Callable[[], object]) -> float:
        seconds: list[float] = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
        return BUCKET_BYTES * NUM_BUCKETS / min(seconds)

    def _digest(self, number: int) -> None:
        place = self._shadow[number * BUCKET_BYTES :][:BUCKET_BYTES]
        digest_tensor(place)

    def _take_in_turn(self, link: _Clock, bus: _Clock) -> None:
        """Two broadcasts under way; the thread that begins them copies and digests."""
        works: list[float] = []

        def land(number: int) -> None:
            link.finish(works[number])
            bus.finish(bus.start(self._bucket))
            self._digest(number)

        for number in range(NUM_BUCKETS):
            works.append(link.start(self._bucket))
            if number:
                land(number - 1)
        land(NUM_BUCKETS - 1)

    def _take_overlapped(self, link: _Clock, bus: _Clock) -> None:
        device: Any = _Device()
        stream = _Stream(self._layout, self._shadow, bus)
        pump = Pump(stream, BUCKET_BYTES, device, 0, IN_FLIGHT, link.start, _wait)
        with ThreadPoolExecutor(DIGEST_THREADS) as threads:

            def arrived(end: int) -> None:
                threads.submit(self._digest, end // BUCKET_BYTES - 1)

            try:
                pump.receive(link.finish, arrived)
            finally:
                pump.close(1.0)
