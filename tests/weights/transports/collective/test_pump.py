"""What may be under way at once at one end of a transfer: a slow copy and a slow link, each by itself."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.weight_sync.accelerators import StandIn
from tests.weight_sync.ends import CPU, LONG, until
from trimaran.types import TensorInfo
from weights.transports.collective.process_groups import IN_FLIGHT
from weights.transports.collective.pump import NUM_BUCKETS, Pump
from weights.transports.streams import Stream
from weights.version.layout import make_layout

NUM_SPANS = 9
SPAN = 64
LAYOUT = make_layout([TensorInfo("w", "U8", (NUM_SPANS * SPAN,), 0)])


class Gates:
    """Those below `num_open` are open; what comes to another one waits."""

    def __init__(self, is_open: bool) -> None:
        self.seen: list[int] = []
        self.num_open = NUM_SPANS if is_open else 0

    def come(self, number: int) -> None:
        self.seen.append(number)
        self.wait(number)

    def wait(self, number: int) -> None:
        until(lambda: self.num_open > number)


class SlowStream(Stream):
    """Copies stand at gates."""

    def __init__(self, buffer: torch.Tensor, gates: Gates) -> None:
        super().__init__(LAYOUT, buffer, LAYOUT)
        self._gates = gates

    def read(self, start, end, bucket):
        self._gates.come(start // SPAN)
        super().read(start, end, bucket)

    def write(self, start, end, bucket):
        self._gates.come(start // SPAN)
        super().write(start, end, bucket)


class Link:
    """Broadcasts that stand at gates; `sent` is on the wire."""

    def __init__(self, gates: Gates, incoming: torch.Tensor | None = None) -> None:
        self.gates, self._incoming = gates, incoming
        self.sent: list[torch.Tensor] = []

    def start(self, tensor: torch.Tensor) -> int:
        number = len(self.gates.seen)
        self.gates.seen.append(number)
        if self._incoming is not None:
            tensor.copy_(self._incoming[number * SPAN :][: len(tensor)])
        self.sent.append(tensor)
        return number

    def finish(self, work: int) -> None:
        self.gates.wait(work)


class End:
    """One end in a thread of its own."""

    def __init__(
        self, device: Any, *, copies: bool, link: bool, is_sender: bool, in_flight: int = IN_FLIGHT
    ) -> None:
        """`copies`, `link`: whether all of their gates are open."""
        self.value = torch.arange(LAYOUT.num_bytes).to(torch.uint8)
        self.buffer = self.value.clone() if is_sender else torch.zeros_like(self.value)
        self.copies = Gates(copies)
        self.link = Link(Gates(link), None if is_sender else self.value)
        self.ends: list[int] = []
        self.raised: list[Exception] = []
        stream = SlowStream(self.buffer, self.copies)
        self.is_given_up = False
        self.pump = Pump(stream, SPAN, device, 0, in_flight, self.link.start, self._wait)
        self._is_sender = is_sender
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._is_sender:
                self.pump.send(self.link.finish)
            else:
                self.pump.receive(self.link.finish, self.arrived)
        except ValueError as error:
            self.raised.append(error)
        finally:
            self.pump.close(0.1)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        until(lambda: is_done() or self.is_given_up)
        if self.is_given_up:
            raise ValueError("given up")

    def arrived(self, end: int) -> None:
        self.ends.append(end)

    def end(self) -> None:
        self.copies.num_open = self.link.gates.num_open = NUM_SPANS
        self._thread.join(LONG)
        assert not self._thread.is_alive()


def settle() -> None:
    """Long enough for a mistake to show."""
    threading.Event().wait(0.05)


def test_a_receiver_takes_more_while_it_copies():
    end = End(StandIn(), copies=False, link=True, is_sender=False)
    until(lambda: len(end.link.gates.seen) == NUM_BUCKETS)
    settle()
    # The first bucket is being copied; its memory is not used for the next broadcast.
    assert (end.copies.seen, end.link.gates.seen) == ([0], [0, 1, 2])
    for number in range(1, 4):
        end.copies.num_open = number
        until(lambda count=number: len(end.link.gates.seen) == NUM_BUCKETS + count)
    settle()
    assert len(end.link.gates.seen) == NUM_BUCKETS + 3
    end.end()
    assert torch.equal(end.buffer, end.value)
    assert end.ends == [SPAN * number for number in range(1, NUM_SPANS + 1)]


def test_a_sender_copies_the_next_bucket_while_two_travel():
    end = End(StandIn(), copies=True, link=False, is_sender=True)
    until(lambda: len(end.copies.seen) == NUM_BUCKETS)
    settle()
    # The next copy would write into a bucket that still travels.
    assert (end.copies.seen, end.link.gates.seen) == ([0, 1, 2], [0, 1])
    end.link.gates.num_open = 1
    until(lambda: len(end.copies.seen) == NUM_BUCKETS + 1)
    end.end()
    assert end.link.gates.seen == list(range(NUM_SPANS))
    assert torch.equal(torch.cat(end.link.sent[-1:]), end.value[-SPAN:])


@pytest.mark.parametrize("is_sender", [True, False], ids=["sender", "receiver"])
def test_one_bucket_at_a_time_travels_where_that_is_asked(is_sender):
    end = End(CPU, copies=True, link=False, is_sender=is_sender, in_flight=1)
    until(lambda: end.link.gates.seen == [0])
    settle()
    assert end.link.gates.seen == [0]
    end.link.gates.num_open = 1
    until(lambda: end.link.gates.seen == [0, 1])
    end.end()
    assert end.link.gates.seen == list(range(NUM_SPANS))
    assert is_sender or torch.equal(end.buffer, end.value)


@pytest.mark.parametrize("device", [CPU, StandIn()], ids=["host", "device"])
def test_what_an_arrival_raises_ends_the_transfer(device):
    class Picky(End):
        def arrived(self, end: int) -> None:
            raise ValueError("wrong")

    end = Picky(device, copies=True, link=True, is_sender=False)
    end.end()
    assert [str(error) for error in end.raised] == ["wrong"]
    assert end.pump.settled


def test_a_copy_that_hangs_is_not_settled():
    end = End(StandIn(), copies=False, link=True, is_sender=False)
    until(lambda: end.copies.seen == [0])
    end.is_given_up = True
    until(lambda: end.raised)
    assert not end.pump.settled
    end.end()
    until(lambda: end.pump.settled)
    assert end.copies.seen == [0]  # those behind it were not made any more


def test_on_the_host_nothing_is_copied():
    end = End(CPU, copies=True, link=True, is_sender=True)
    end.end()
    assert end.copies.seen == []
    places = [tensor.data_ptr() - end.buffer.data_ptr() for tensor in end.link.sent]
    assert places == [SPAN * number for number in range(NUM_SPANS)]
