import struct
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.errors import InputError
from trimaran.types import TensorInfo
from weights.memory.host_memory import DTYPE_NAMES, DTYPES, block_view
from weights.sending import snapshot as snapshot_module
from weights.sending.snapshot import TensorPart, take_snapshot, with_plus_zero
from weights.version.digest import INTEGERS, digest_value
from weights.version.layout import to_ranges
from weights.version.manifest import list_digests

TENSORS = (
    TensorInfo("rows", "BF16", (6, 4), 0, (2, 4)),
    TensorInfo("columns", "F32", (3, 8), 1, (4,)),
    TensorInfo("norm", "F32", (5,)),
    TensorInfo("scale", "F32", ()),
    TensorInfo("none", "BF16", (0, 2)),
)
ALL = ((0, 8),)


def values(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {t.name: torch.randn(t.shape).to(DTYPES[t.dtype]) for t in TENSORS}


def whole(tensors: dict[str, torch.Tensor], infos=TENSORS) -> list[TensorPart]:
    lengths = {t.name: t.shape[t.axis] if t.shape else 1 for t in infos}
    return [TensorPart(name, 0, lengths[name], tensor) for name, tensor in tensors.items()]


def test_blocks_are_copied_and_digested():
    tensors = values()
    snapshot = take_snapshot(TENSORS, whole(tensors), ALL)
    digests = list_digests(snapshot.manifest)
    for piece in snapshot.layout.pieces:
        block = piece.block
        source = tensors[block.tensor.name]
        if block.tensor.shape:
            source = source.narrow(block.tensor.axis, block.start, block.stop - block.start)
        assert torch.equal(block_view(snapshot.buffer, piece), source)
        assert digests[block.number] == digest_value(source)


def test_ranks_with_shards_and_one_rank_with_everything_make_the_same_version():
    tensors = values()
    one = take_snapshot(TENSORS, whole(tensors), ALL)
    shares = [
        (  # Its shard of "rows" has two blocks; of "columns" the left half.
            ((0, 2), (3, 4), (5, 8)),
            [
                TensorPart("columns", 0, 4, tensors["columns"][:, :4]),
                TensorPart("rows", 0, 4, tensors["rows"][:4]),
                *whole({name: tensors[name] for name in ("norm", "scale", "none")}),
            ],
        ),
        (  # A replicated tensor is offered too, but is the other's share.
            ((2, 3), (4, 5)),
            [
                TensorPart("rows", 4, 6, tensors["rows"][4:]),
                TensorPart("columns", 4, 8, tensors["columns"][:, 4:]),
                *whole({"norm": tensors["norm"]}),
            ],
        ),
    ]
    everyone = dict(enumerate(list_digests(one.manifest)))
    reported = []

    def exchange(own):
        reported.append(own)
        return everyone

    for ranges, parts in shares:
        snapshot = take_snapshot(TENSORS, parts, ranges, exchange)
        assert snapshot.manifest == one.manifest
        assert snapshot.layout.ranges == ranges
        assert snapshot.buffer.numel() < one.buffer.numel()
    assert {**reported[0], **reported[1]} == everyone
    assert not reported[0].keys() & reported[1].keys()


@given(st.lists(st.sampled_from([0.0, -0.0, 1.5, -2.0]), min_size=1), st.booleans())
@settings(deadline=None)
def test_minus_zero_counts_as_zero(numbers, half):
    dtype = torch.bfloat16 if half else torch.float32
    info = TensorInfo("w", DTYPE_NAMES[dtype], (len(numbers),))

    def snapshot(numbers):
        part = TensorPart("w", 0, len(numbers), torch.tensor(numbers, dtype=dtype))
        return take_snapshot([info], [part], ((0, 1),))

    with_sign = snapshot(numbers)
    without = snapshot([number + 0.0 for number in numbers])
    assert with_sign.manifest == without.manifest
    assert struct.pack("<f", -0.0) not in bytes(with_sign.buffer.numpy().data)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_device_writes_plus_zero_and_keeps_every_other_bit(dtype):
    """Denormals and NaNs with all their bits, in a slice that is not contiguous."""
    size = torch.empty(0, dtype=dtype).element_size()
    integers = INTEGERS[size]
    low = torch.iinfo(integers).min
    bits = torch.tensor([0, low, 1, low + 1, -1, -2, low // 2, low // 2 + 1], dtype=integers)
    given = bits.repeat(2).view(4, 4).t()[1:]
    found = with_plus_zero(given.view(dtype)).view(integers)
    assert found.tolist() == given.where(given != low, 0).tolist()
    assert low in given  # what was given stays as it was


@pytest.mark.parametrize("shape", [(7, 3), (64,), (), (0, 2)])
@pytest.mark.parametrize("num_bytes", [1, 24])
def test_a_device_is_read_in_parts(monkeypatch, shape, num_bytes):
    monkeypatch.setattr(snapshot_module, "DEVICE_BYTES", num_bytes)
    source = torch.full(shape, -0.0)
    if shape:
        source[1::2] = 1.5
    target = torch.full(shape, 7.0)
    snapshot_module._write_from_device(target, source)
    assert torch.equal(target, source) and not target.signbit().any()


def test_a_snapshot_takes_over_the_memory_of_another():
    first = take_snapshot(TENSORS, whole(values(0)), ALL)
    second = take_snapshot(TENSORS, whole(values(1)), ALL, reuse=first)
    assert (second.buffer.data_ptr(), second.path) == (first.buffer.data_ptr(), first.path)
    assert second.delta is None
    fresh = take_snapshot(TENSORS, whole(values(1)), ALL)
    assert second.manifest == fresh.manifest != first.manifest
    # But not of another model or share.
    with pytest.raises(InputError, match="differ from those of the snapshot to reuse"):
        take_snapshot(TENSORS, whole(values()), ((0, 2),), reuse=first)
    with pytest.raises(InputError, match="differ from those of the snapshot to reuse"):
        take_snapshot(TENSORS[:1], whole(values()), ((0, 3),), reuse=first)


def test_a_delta_has_the_changed_blocks_only():
    tensors = values()
    first = take_snapshot(TENSORS, whole(tensors), ALL)
    base_root = first.manifest.root
    tensors["rows"][3, 1] += 1
    tensors["scale"] = tensors["scale"] + 1
    second = take_snapshot(TENSORS, whole(tensors), ALL, reuse=first, keep_delta=True)
    assert second.delta is not None
    assert second.delta.base_root == base_root
    assert sorted(second.delta.pieces) == [1, 6]
    described = second.delta.describe(ALL)
    assert [size > 0 for size in described.sizes] == [n in (1, 6) for n in range(8)]
    assert second.manifest == take_snapshot(TENSORS, whole(tensors), ALL).manifest


def test_what_is_frozen_is_copied_and_digested_once():
    """Else a delta of adapters would cost a comparison of the whole model."""
    tensors = values()

    def parts(frozen_rows: torch.Tensor) -> list[TensorPart]:
        rows, *rest = whole({**tensors, "rows": frozen_rows})
        return [replace(rows, is_frozen=True), *rest]

    first = take_snapshot(TENSORS, parts(tensors["rows"]), ALL)
    before = list_digests(first.manifest)
    tensors["norm"] = tensors["norm"] + 1
    # Not looked at any more: these would change the digests.
    second = take_snapshot(TENSORS, parts(tensors["rows"] + 1), ALL, reuse=first, keep_delta=True)
    changed = [n for n, one in enumerate(list_digests(second.manifest)) if one != before[n]]
    assert second.delta and [*second.delta.pieces] == changed
    assert second.manifest.root == take_snapshot(TENSORS, whole(tensors), ALL).manifest.root


@pytest.mark.parametrize(
    ("part", "what"),
    [
        (TensorPart("norm", 0, 5, torch.zeros(4)), r"norm 0..5: .* F32 \(5,\), not F32 \(4,\)"),
        (TensorPart("norm", 0, 5, torch.zeros(5).half()), r"norm .*, not F16 \(5,\)"),
        (TensorPart("norm", 0, 4, torch.zeros(4)), "norm: no part holds the block.* start at 0"),
        (TensorPart("norm", 0, 5, torch.zeros(5) * 1j), "norm .*, not torch.complex64"),
    ],
)
def test_a_wrong_part_is_named(part, what):
    parts = [part if other.name == "norm" else other for other in whole(values())]
    with pytest.raises(InputError, match=what):
        take_snapshot(TENSORS, parts, ALL)


def test_a_block_that_nothing_has_is_named():
    with pytest.raises(InputError, match="rows: no part holds the block.* start at 0, 2, 4"):
        take_snapshot(TENSORS, whole(values())[1:], ALL)
    with pytest.raises(InputError, match="rows: no rank has digested its block 2"):
        take_snapshot(TENSORS, whole(values()), to_ranges([0, 1, 3, 4, 5, 6, 7]))


def test_parts_are_taken_one_by_one():
    """A rank that makes its tensors one by one needs no second copy of the model."""
    first = take_snapshot(TENSORS, whole(values(1)), ALL)
    tensors = values()
    landed = []

    def parts():
        for part in whole(tensors):
            yield part
            own = [p for p in first.layout.pieces if p.block.tensor.name == part.name]
            found = torch.cat([block_view(first.buffer, piece).reshape(-1) for piece in own])
            landed.append(torch.equal(found.sort()[0], part.tensor.reshape(-1).sort()[0]))

    take_snapshot(TENSORS, parts(), ALL, reuse=first)
    assert landed == [True] * len(TENSORS)
