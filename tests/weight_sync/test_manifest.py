import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.weight_sync.manifest import (
    ALIGNMENT,
    ITEM_BYTES,
    buckets,
    build_manifest,
    check_manifest,
    compute_root,
    digest_bytes,
    manifest_from_json,
    manifest_to_json,
    num_bytes,
    offsets,
)
from services.weight_sync.snapshot import take_snapshot
from trimaran.errors import InputError, TransferError
from trimaran.types import Manifest, TensorInfo

infos = st.lists(
    st.builds(
        TensorInfo,
        name=st.text(min_size=1, max_size=8),
        dtype=st.sampled_from(sorted(ITEM_BYTES)),
        shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
        digest=st.binary(max_size=8).map(digest_bytes),
    ),
    max_size=6,
    unique_by=lambda info: info.name,
)


def test_digest_is_xxh3_128():
    assert digest_bytes(b"") == "99aa06d3014798d86001c324468d497f"  # xxHash's own test vector


@given(infos)
def test_layout_is_aligned_and_without_overlap(tensors):
    starts = offsets(tensors)
    assert len(starts) == len(tensors) + 1
    for tensor, start, following in zip(tensors, starts, starts[1:], strict=False):
        assert start % ALIGNMENT == 0
        assert start + num_bytes(tensor) <= following < start + num_bytes(tensor) + ALIGNMENT


@given(total=st.integers(0, 10_000), size=st.integers(1, 3_000))
def test_buckets_cover_every_byte_once(total, size):
    pieces = buckets(total, size)
    assert [byte for start, end in pieces for byte in range(start, end)] == list(range(total))
    assert all(end - start <= size for start, end in pieces)


@given(infos, st.randoms())
def test_root_does_not_depend_on_the_order(tensors, random):
    shuffled = list(tensors)
    random.shuffle(shuffled)
    assert compute_root(shuffled) == compute_root(tensors)


@given(infos.filter(bool), st.data())
def test_root_depends_on_every_field(tensors, data):
    index = data.draw(st.integers(0, len(tensors) - 1))
    old = tensors[index]
    new = data.draw(
        st.sampled_from(
            [
                TensorInfo(old.name + "x", old.dtype, old.shape, old.digest),
                TensorInfo(old.name, "F64" if old.dtype != "F64" else "I64", old.shape, old.digest),
                TensorInfo(old.name, old.dtype, (*old.shape, 1), old.digest),
                TensorInfo(old.name, old.dtype, old.shape, digest_bytes(b"another")),
            ]
        )
    )
    assert compute_root([*tensors[:index], new, *tensors[index + 1 :]]) != compute_root(tensors)


@given(infos)
def test_manifest_survives_json(tensors):
    manifest = build_manifest(tensors)
    assert manifest_from_json(manifest_to_json(manifest)) == manifest
    check_manifest(manifest, manifest.root)


@given(st.lists(st.sampled_from([0.0, -0.0, 1.5, -2.0]), min_size=1), st.booleans())
def test_minus_zero_counts_as_zero(values, half):
    dtype = torch.bfloat16 if half else torch.float32
    with_sign = take_snapshot([("w", torch.tensor(values, dtype=dtype))])
    without = take_snapshot([("w", torch.tensor([v + 0.0 for v in values], dtype=dtype))])
    assert with_sign.manifest == without.manifest
    assert struct.pack("<f", -0.0) not in bytes(with_sign.buffer.numpy().data)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_flipped_or_lost_byte_changes_the_digest(payload, data):
    index = data.draw(st.integers(0, len(payload) - 1))
    flipped = bytearray(payload)
    flipped[index] ^= 1 << data.draw(st.integers(0, 7))
    assert digest_bytes(flipped) != digest_bytes(payload)
    assert digest_bytes(payload[:index]) != digest_bytes(payload)


def test_a_snapshot_reuses_its_memory_and_refuses_another_model():
    first = take_snapshot([("a", torch.ones(3)), ("b", torch.zeros(0, 2))])
    second = take_snapshot([("a", torch.full((3,), 2.0)), ("b", torch.zeros(0, 2))], first)
    assert second.buffer.data_ptr() == first.buffer.data_ptr()
    assert second.manifest.root != first.manifest.root
    with pytest.raises(InputError, match="differs"):
        take_snapshot([("a", torch.ones(4)), ("b", torch.zeros(0, 2))], first)
    with pytest.raises(InputError, match="number of tensors"):
        take_snapshot([("a", torch.ones(3))], first)


def test_a_manifest_must_be_that_of_the_version():
    good = build_manifest([TensorInfo("w", "F32", (2,), digest_bytes(b""))])
    with pytest.raises(TransferError, match="roots differ"):
        check_manifest(good, "another")
    changed = Manifest(good.digest_name, (TensorInfo("w", "F32", (3,), ""),), good.root)
    with pytest.raises(TransferError, match="roots differ"):
        check_manifest(changed, good.root)
    with pytest.raises(TransferError, match="sha256"):
        check_manifest(Manifest("sha256", good.tensors, good.root), good.root)


def test_bad_tensors_are_named():
    with pytest.raises(InputError, match="w: dtype F8_E4M3 cannot travel"):
        build_manifest([TensorInfo("w", "F8_E4M3", (1,), "")])
    twice = TensorInfo("w", "F32", (1,), "")
    with pytest.raises(InputError, match="w: stands twice"):
        build_manifest([twice, twice])
