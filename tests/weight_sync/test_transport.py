"""The parts under the transports, without a network: streams, coverage, stops, what is in stock."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.weight_sync.ends import (
    ALL,
    LONG,
    TENSORS,
    make_snapshot,
)
from trimaran.errors import TransferError
from trimaran.types import Delta, RelaySource
from weights.delta.delta_stage import delta_layout, join_deltas
from weights.transports.arrival import check_sources
from weights.transports.calls import Stop
from weights.transports.relay.stock import Holding
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
