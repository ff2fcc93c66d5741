"""One end of one transfer: a stream through a group, bucket by bucket, with all steps under way at once.

    sender     host ─copy─▶ bucket ─broadcast─▶
    receiver                ─broadcast─▶ bucket ─copy─▶ host ─▶ landed

While one bucket is copied, the next ones travel. Copies are made on a thread and a
device stream of their own: so they wait neither for the group's calls nor for what
the process computes. Each copy is a blocking one. Whether a copy that was only
queued has ended would have to be asked of the device, which every vendor answers in
its own way.

On the host a bucket is the buffer's own memory where that lies in one piece, and
nothing is copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trimaran.host.call_thread import CallThread
from trimaran.host.device import Device
from weights.transports.collective.process_groups import IN_FLIGHT
from weights.transports.streams import Stream
from weights.version.layout import buckets

NUM_BUCKETS = IN_FLIGHT + 1
"""The buckets of one end, at most: those that travel, and one that is copied meanwhile."""


@dataclass(slots=True)
class _Load:
    """What travels at once: the stream's bytes start..end (exclusive)."""

    start: int
    end: int
    tensor: torch.Tensor
    in_place: bool
    """`tensor` is the buffer's own memory."""
    work: Any = None


class Pump:
    """Used once: either `send` or `receive`, then `close`.

    Example:

        pump = Pump(stream, 64 << 20, device, 0, IN_FLIGHT, start=broadcast, wait=wait_for)
        try:
            pump.receive(arrived=lambda end: print(end))
        finally:
            pump.close(timeout=1.0)
    """

    def __init__(
        self,
        stream: Stream,
        bucket_bytes: int,
        device: Device,
        index: int,
        in_flight: int,
        start: Callable[[torch.Tensor], Any],
        wait: Callable[[Callable[[], bool]], None],
    ) -> None:
        """`in_flight`: broadcasts under way at a time, at most IN_FLIGHT. `start` begins one and gives its work.
        `wait` returns once what it is given is True, and raises when the transfer is to end."""
        self._stream, self._bucket_bytes = stream, bucket_bytes
        self._device, self._index = device, index
        self._in_flight = in_flight
        self._start, self._wait = start, wait
        self._buckets: list[torch.Tensor | None] = [None] * NUM_BUCKETS
        self._travelling: deque[_Load] = deque()
        self._copies: deque[Future[None]] = deque()
        """The copies of the last buckets, in their order."""
        self._thread = CallThread("transfer-copies")
        self._prepared = self._thread.submit(self._prepare_thread)

    @property
    def works(self) -> list[Any]:
        """Under way."""
        return [load.work for load in self._travelling]

    @property
    def settled(self) -> bool:
        """Closed, and no copy is under way any more."""
        return not self._thread.alive

    def send(self, finish: Callable[[Any], None]) -> None:
        """`finish(work)` returns once a broadcast has ended."""
        self._await(self._prepared)
        waiting: deque[_Load] = deque()
        for load in self._loads(free=lambda: self._end_oldest(finish, at_most=self._in_flight - 1)):
            if load.in_place:
                self._copies.append(_done())
            else:
                read = partial(self._stream.read, load.start, load.end, load.tensor)
                self._copies.append(self._thread.submit(read))
            waiting.append(load)
            if len(waiting) == self._in_flight:
                self._begin_copied(waiting.popleft())
        while waiting:
            self._end_oldest(finish, at_most=self._in_flight - 1)
            self._begin_copied(waiting.popleft())
        self._end_oldest(finish, at_most=0)

    def receive(self, finish: Callable[[Any], None], arrived: Callable[[int], None]) -> None:
        """`arrived(end)` is called on the thread that copies, in order, when the stream's bytes before
        `end` lie in the buffer. What it raises ends the transfer."""

        def land(load: _Load) -> None:
            if not load.in_place:
                self._stream.write(load.start, load.end, load.tensor)
            arrived(load.end)

        def end_oldest(at_most: int) -> None:
            while len(self._travelling) > at_most:
                finish(self._travelling[0].work)
                self._copies.append(self._thread.submit(partial(land, self._travelling.popleft())))

        self._await(self._prepared)
        # A bucket is free again once what came in it before lies in the buffer.
        for load in self._loads(free=lambda: self._await_copies(at_most=1)):
            self._begin(load)
            end_oldest(at_most=self._in_flight - 1)
        end_oldest(at_most=0)
        self._await_copies(at_most=0)

    def close(self, timeout: float) -> None:
        """Copies that have not begun are not made any more; one under way may end in `timeout` seconds."""
        for copy in self._copies:
            copy.cancel()
        self._thread.stop(lambda: None, timeout)

    def _prepare_thread(self) -> None:
        self._device.activate(self._index)
        self._device.use_own_stream()

    def _loads(self, free: Callable[[], None]) -> Iterator[_Load]:
        """`free` is called before a bucket is used; it returns once that one is not in use any more."""
        spans = buckets(self._stream.num_bytes, self._bucket_bytes)
        for number, (start, end) in enumerate(spans):
            free()
            # Where the host's own memory can travel it does; else a bucket on the device.
            view = self._stream.view(start, end) if self._device.on_host else None
            tensor = self._bucket(number, end - start) if view is None else view
            yield _Load(start, end, tensor, view is not None)

    def _bucket(self, number: int, size: int) -> torch.Tensor:
        place = number % NUM_BUCKETS
        bucket = self._buckets[place]
        if bucket is None:
            where = self._device.torch_device(self._index)
            bucket = torch.empty(self._bucket_bytes, dtype=torch.uint8, device=where)
            self._buckets[place] = bucket
        return bucket[:size]

    def _begin(self, load: _Load) -> None:
        load.work = self._start(load.tensor)
        self._travelling.append(load)

    def _begin_copied(self, load: _Load) -> None:
        self._await(self._copies.popleft())
        self._begin(load)

    def _end_oldest(self, finish: Callable[[Any], None], at_most: int) -> None:
        """Until at most so many travel."""
        while len(self._travelling) > at_most:
            finish(self._travelling[0].work)
            self._travelling.popleft()

    def _await_copies(self, at_most: int) -> None:
        """Until at most so many are under way."""
        while len(self._copies) > at_most:
            self._await(self._copies[0])
            self._copies.popleft()

    def _await(self, copy: Future[None]) -> None:
        self._wait(copy.done)
        copy.result()


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
