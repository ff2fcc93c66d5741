"""The parts under the transports, without a network: streams, coverage, stops, what is in stock."""

import threading
import time
from contextlib import closing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.weight_sync.ends import (
    ALL,
    CONFIG,
    CPU,
    LONG,
    TENSORS,
    by_relay,
    holds,
    make_snapshot,
    stage,
)
from trimaran.errors import DeadlineError, TransferError
from trimaran.host.call_thread import CallThread
from trimaran.types import Delta, RelaySource, Transport
from weights.delta.delta_stage import delta_layout, join_deltas
from weights.receiving.receiver import WeightReceiver
from weights.transports.arrival import check_sources
from weights.transports.calls import Stop
from weights.transports.carrier import Carrier, WrongBlockError
from weights.transports.relay.stock import Holding, Stock
from weights.transports.streams import Stream
from weights.version.layout import make_layout, to_ranges

numbers = st.sets(st.integers(0, 8), min_size=1)


@given(sent=numbers, wanted=numbers, bucket_bytes=st.integers(1, 700))
def test_a_stream_carries_each_block_between_any_two_layouts(sent, wanted, bucket_bytes):
    snapshot = make_snapshot()
    stream_layout = make_layout(TENSORS, to_ranges(sent))
    target_layout = make_layout(TENSORS, to_ranges(wanted))
    target = torch.full((target_layout.num_bytes,), 255, dtype=torch.uint8)
    out = Stream(stream_layout, snapshot.buffer, snapshot.layout)
    into = Stream(stream_layout, target, target_layout)
    for start in range(0, out.num_bytes, bucket_bytes):
        end = min(start + bucket_bytes, out.num_bytes)
        bucket = torch.zeros(end - start, dtype=torch.uint8)
        out.read(start, end, bucket)
        view = out.view(start, end)
        assert view is None or torch.equal(view, bucket)
        into.write(start, end, bucket)
    places = snapshot.layout.by_number()
    for piece in target_layout.pieces:
        number = piece.block.number
        source = places[number]
        expected = snapshot.buffer[source.start : source.end]
        if number not in sent:
            expected = torch.full_like(expected, 255)
        assert torch.equal(target[piece.start : piece.end], expected)


def test_equal_layouts_travel_in_place():
    snapshot = make_snapshot()
    stream = Stream(snapshot.layout, snapshot.buffer, snapshot.layout)
    for start in range(0, stream.num_bytes, 100):
        view = stream.view(start, min(start + 100, stream.num_bytes))
        assert view is not None and view.data_ptr() == snapshot.buffer.data_ptr() + start


def test_pieces_of_a_delta_follow_each_other_without_gaps():
    first = delta_layout(TENSORS, ((1, 3), (6, 7)), Delta("base", (7, 0, 5)))
    assert [(p.block.number, p.start, p.end) for p in first.pieces] == [
        (1, 0, 7),
        (2, 7, 7),
        (6, 7, 12),
    ]
    assert first.num_bytes == 12
    second = delta_layout(TENSORS, ((3, 5),), Delta("base", (2, 3)))
    joined = join_deltas(TENSORS, [first, second], ((2, 5), (6, 7)))
    assert [(p.block.number, p.start, p.end) for p in joined.pieces] == [
        (2, 0, 0),
        (3, 0, 2),
        (4, 2, 5),
        (6, 5, 10),
    ]
    with pytest.raises(TransferError, match="3 sizes for 2 blocks"):
        delta_layout(TENSORS, ((0, 2),), Delta("base", (1, 1, 1)))


def sources(*all_blocks):
    return [RelaySource(blocks, ()) for blocks in all_blocks]


def test_sources_must_cover_every_wanted_block_once():
    manifest = make_snapshot().manifest
    check_sources(manifest, ALL, sources(((0, 4),), ((4, 9),)))
    check_sources(manifest, ((1, 3),), sources(((0, 4),)))
    check_sources(manifest, ((1, 3),), sources(((0, 2),), ((2, 3), (4, 6)), ((5, 6),)))
    with pytest.raises(TransferError, match=r"block 3 \(empty 0:0\).*block 8 \(steps 0:3\)"):
        check_sources(manifest, ALL, sources(((0, 3),), ((4, 8),)))
    with pytest.raises(TransferError, match=r"two sources bring block 2 .*each block must"):
        check_sources(manifest, ALL, sources(((0, 3),), ((2, 9),)))
    with pytest.raises(TransferError, match="and 6 more"):
        check_sources(manifest, ALL, [])


class DictCarrier(Carrier[RelaySource]):
    """What docs/weight-plane.md asks of a transport, and no more."""

    def __init__(self, blocks):
        self.blocks = blocks

    def carry(self, job):
        for piece in job.pieces():
            job.stop.check()
            job.buffer[piece.start : piece.end] = self.blocks[piece.block.number]
            job.land(piece.block.number)


def test_a_carrier_of_ones_own_fills_a_shadow_and_its_wrong_bytes_are_found():
    snapshot = make_snapshot()
    blocks = {p.block.number: snapshot.buffer[p.start : p.end] for p in snapshot.layout.pieces}
    carriers = {Transport.RELAY: DictCarrier(blocks)}
    with closing(WeightReceiver(CPU, 0, CONFIG, carriers=carriers)) as receiver:
        staged = stage(receiver, snapshot, by_relay(snapshot))
        assert staged.bytes_by_transport == {
            Transport.RELAY: sum(piece.block.num_bytes for piece in snapshot.layout.pieces)
        }
        assert holds(receiver, snapshot)
        blocks[6] = blocks[6] ^ 1
        with pytest.raises(WrongBlockError, match="block 6"):
            stage(receiver, snapshot, by_relay(snapshot))
        assert receiver.staged is None


def test_a_stop_interrupts_what_is_under_way_and_nothing_later():
    events = []
    stop = Stop()
    with stop.interrupting(lambda: events.append("former")):
        pass
    with stop.interrupting(lambda: events.append("now")):
        stop.set("first reason")
        stop.set("second reason")
    assert events == ["now"]
    for wait in (stop.check, lambda: stop.pause(LONG), stop.interrupting(print).__enter__):
        with pytest.raises(TransferError, match="first reason"):
            wait()


def test_every_caller_of_a_call_thread_can_be_given_up():
    thread, release = CallThread("calls"), threading.Event()
    faults = []

    def call():
        try:
            thread.call(lambda: release.wait(LONG), LONG)
        except DeadlineError as error:
            faults.append(str(error))

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    while len(thread._waiting) < 2:
        time.sleep(0.001)
    thread.give_up()
    for caller in callers:
        caller.join(LONG)
    assert faults == ["calls: given up by its caller"] * 2
    release.set()
    assert thread.stop(lambda: None, LONG)
    with pytest.raises(DeadlineError, match="given up"):  # and not by the deadline
        thread.call(lambda: None, LONG)


def test_a_holding_gives_out_what_has_landed():
    contents = {number: memoryview(bytes([number])) for number in range(3)}
    holding = Holding(contents, filling=True)
    assert list(holding.follow([0, 1], 0.0)) == []
    holding.land(1)
    given = holding.follow([0, 1, 2], LONG)
    assert next(given) == 1
    threading.Timer(0.05, holding.land, [2]).start()
    assert next(given) == 2
    holding.complete()
    assert list(given) == []  # at once: no more will come
    assert (holding.read(2), holding.void) == (b"\2", False)
    assert list(holding.follow([2, 1, 0], LONG)) == [1, 2]  # as they landed
    holding.withdraw()
    assert (holding.read(2), holding.void, list(holding.follow([1], LONG))) == (None, True, [])


def test_what_is_withdrawn_while_it_is_followed_ends():
    holding = Holding({n: memoryview(b"x") for n in range(3)}, filling=True)
    holding.land(0)
    given = holding.follow([0, 1], LONG)
    assert next(given) == 0
    threading.Timer(0.05, holding.withdraw).start()
    assert list(given) == []
    assert holding.void


def test_each_landed_block_is_looked_at_once():
    """A quadratic walk would look at 800 million of the largest model's 40,000 blocks."""
    looks = 0

    class Number(int):
        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return int(self)

    count = 300
    holding = Holding({n: memoryview(b"x") for n in range(count)}, filling=True)
    given = holding.follow([Number(n) for n in range(count)], LONG)
    for number in range(count):
        holding.land(Number(number))
        assert next(given) == number
    assert looks < 10 * count


def test_what_is_no_longer_shown_is_withdrawn():
    stock = Stock()
    whole, delta, other = (Holding({0: memoryview(b"x")}) for _ in range(3))
    stock.show({("root", ""): whole, ("root", "base"): delta})
    assert (stock.find("root"), stock.find("root", "base")) == (whole, delta)
    stock.show({("root", ""): whole, ("other", ""): other})
    assert (stock.find("root"), stock.find("root", "base")) == (whole, None)
    assert [item.void for item in (whole, delta, other)] == [False, True, False]
    stock.show({("root", ""): other})
    assert whole.void
    assert stock.find("root") is other
    assert not other.void
    stock.show({})
    assert other.void
