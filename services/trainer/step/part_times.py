"""Seconds of a training step's parts, one by one.

    times = PartTimes(policy.device)
    with times.of("reference_logprobs"):
        ...
    times.take()  # {"trainer/part/reference_logprobs/seconds": 1.25}

On a host a part lasts from its first line to its last. An accelerator runs behind the host, which only queues its
work: there a part lasts from the moment when the device comes to its beginning until it comes to its end, waits
for the host and for other ranks included. Marks in the device's queue give these moments. They cost nothing, and
are read at the end of a step, whose sums have waited for the device anyway.

Parts that follow each other do not overlap on either, and together take at most the step. They are this rank's
own. Passes and gradients end with a collective where there are several ranks, so all have nearly the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch

from trimaran.telemetry.metrics import PART_SECONDS

Part = Literal[
    "planning",
    "advantages",
    "old_logprobs",
    "reference_logprobs",
    "reference_onload",
    "reference_offload",
    "gradient",
    "optimizer",
]
"""`trimaran.telemetry.metrics.AXES` has what each is."""


class Clock(Protocol):
    def mark(self) -> Any:
        """A moment, for `seconds`."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two marks."""
        ...


class HostClock:
    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class DeviceClock:
    """The clock of the calling thread's stream on an accelerator."""

    def __init__(self, device: torch.device) -> None:
        self._runtime: Any = torch.get_device_module(device)

    def mark(self) -> Any:
        event = self._runtime.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Waits until the device has come to `end`."""
        end.synchronize()
        return begin.elapsed_time(end) / 1000


class PartTimes:
    """The parts of one step, or of what one policy does in it."""

    def __init__(self, device: torch.device) -> None:
        self._clock: Clock = HostClock() if device.type == "cpu" else DeviceClock(device)
        self._spans: list[tuple[Part, Any, Any]] = []

    @contextmanager
    def of(self, part: Part) -> Iterator[None]:
        """What is inside belongs to the part, which may come several times."""
        begin = self._clock.mark()
        yield
        self._spans.append((part, begin, self._clock.mark()))

    def take(self) -> dict[str, float]:
        """Since the last call, by the metrics' keys; nothing of a part that there was not."""
        seconds: dict[str, float] = {}
        for part, begin, end in self._spans:
            key = PART_SECONDS.format(part)
            seconds[key] = seconds.get(key, 0.0) + self._clock.seconds(begin, end)
        self._spans.clear()
        return seconds
