from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.types import TensorInfo
from weights.version.layout import (
    ALIGNMENT,
    buckets,
    copy_runs,
    count,
    intersect,
    make_layout,
    numbers_of,
    subtract,
    to_ranges,
)
from weights.version.manifest import list_blocks

numbers = st.sets(st.integers(0, 20))


@settings(deadline=None)
@given(numbers, numbers)
def test_ranges_are_sets_of_numbers(left, right):
    one, two = to_ranges(left), to_ranges(right)
    assert list(numbers_of(one)) == sorted(left)
    assert count(one) == len(left)
    assert intersect(one, two) == to_ranges(left & right)
    assert subtract(one, two) == to_ranges(left - right)


@st.composite
def models(draw):
    tensors = []
    for number in range(draw(st.integers(0, 5))):
        length, width = draw(st.integers(0, 12)), draw(st.integers(0, 9))
        axis = draw(st.integers(0, 1))
        along = (length, width)[axis]
        cuts = draw(st.sets(st.integers(1, along - 1), max_size=3)) if along > 1 else set()
        dtype = draw(st.sampled_from(["BF16", "F32", "U8"]))
        tensors.append(TensorInfo(f"t{number}", dtype, (length, width), axis, tuple(sorted(cuts))))
    return tensors


@settings(deadline=None)
@given(models(), st.data())
def test_blocks_lie_in_order_without_overlap(tensors, data):
    blocks = list_blocks(tensors)
    held = data.draw(st.sets(st.integers(0, len(blocks) - 1))) if blocks else set()
    layout = make_layout(tensors, to_ranges(held))
    assert layout.ranges == to_ranges(held)
    assert layout.by_number().keys() == held
    assert layout.num_bytes % ALIGNMENT == 0
    end, tensor = 0, None
    for piece in layout.pieces:
        assert piece.end - piece.start == piece.block.num_bytes
        if piece.block.tensor is tensor:
            assert piece.start == end
        else:
            assert piece.start % ALIGNMENT == 0
            assert end <= piece.start < end + ALIGNMENT
        end, tensor = piece.end, piece.block.tensor
    assert end <= layout.num_bytes


@settings(deadline=None)
@given(models(), st.data())
def test_runs_copy_exactly_the_shared_blocks(tensors, data):
    blocks = list_blocks(tensors)
    some = st.sets(st.sampled_from(range(len(blocks)))) if blocks else st.just(set())
    source = make_layout(tensors, to_ranges(data.draw(some)))
    target = make_layout(tensors, to_ranges(data.draw(some)))
    content = {  # Byte i of block n, by its place.
        piece.start + i: (piece.block.number, i)
        for piece in source.pieces
        for i in range(piece.end - piece.start)
    }
    copied = {
        there + i: content.get(here + i)
        for here, there, length in copy_runs(source, target)
        for i in range(length)
    }
    both = intersect(source.ranges, target.ranges)
    wanted = {
        piece.start + i: (number, i)
        for number, piece in target.by_number().items()
        if number in set(numbers_of(both))
        for i in range(piece.end - piece.start)
    }
    assert {place: what for place, what in copied.items() if what} == wanted


@settings(deadline=None)
@given(total=st.integers(0, 10_000), size=st.integers(1, 3_000))
def test_buckets_cover_every_byte_once(total, size):
    pieces = buckets(total, size)
    assert [byte for start, end in pieces for byte in range(start, end)] == list(range(total))
    assert all(end - start <= size for start, end in pieces)
