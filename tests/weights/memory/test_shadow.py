import multiprocessing
import os
import resource
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.errors import InputError, TransferError
from trimaran.types import Manifest, TensorInfo
from weights.memory.host_memory import DTYPES, HostMemory, MemoryReader, block_view
from weights.memory.shadow import Shadow, open_blocks, open_shadow
from weights.version.layout import numbers_of, to_ranges
from weights.version.manifest import build_manifest

LONG = 60


def manifest_of(*tensors: TensorInfo) -> Manifest:
    return build_manifest([replace(t, digests=("0" * 32,) * t.num_blocks) for t in tensors])


MANIFEST = manifest_of(
    TensorInfo("rows", "BF16", (6, 4), 0, (2, 4)),
    TensorInfo("columns", "F32", (3, 8), 1, (4,)),
    TensorInfo("whole", "F32", (5, 2), 1),
    TensorInfo("scale", "F64", ()),
    TensorInfo("none", "BF16", (0, 2)),
    TensorInfo("uneven", "F32", (2, 5), 1, (2,)),
)


def fill(shadow: Shadow, seed: int = 0) -> dict[str, torch.Tensor]:
    """Block by block, from whole tensors, which it returns."""
    torch.manual_seed(seed)
    tensors = {t.name: torch.randn(t.shape).to(DTYPES[t.dtype]) for t in shadow.manifest.tensors}
    for piece in shadow.layout.pieces:
        block, source = piece.block, tensors[piece.block.tensor.name]
        if block.tensor.shape:
            source = source.narrow(block.tensor.axis, block.start, block.stop - block.start)
        block_view(shadow.buffer, piece).copy_(source)
    return tensors


def test_tensors_come_in_order_and_only_those_cut_along_another_axis_are_copied():
    shadow = Shadow(MANIFEST)
    expected = fill(shadow)
    assert [name for name, _ in shadow.tensors()] == list(expected)
    memory = shadow.buffer.untyped_storage().data_ptr()
    copied = [
        name
        for name, tensor in shadow.tensors()
        if tensor.numel() and tensor.untyped_storage().data_ptr() != memory
    ]
    assert copied == ["columns", "uneven"]


@settings(deadline=None, max_examples=40)
@given(st.sets(st.integers(0, MANIFEST.num_blocks - 1)))
def test_a_shadow_of_some_blocks_has_what_it_holds(numbers):
    shadow = Shadow(MANIFEST, to_ranges(numbers))
    expected = fill(shadow)
    assert list(numbers_of(shadow.layout.ranges)) == sorted(numbers)
    found = dict(shadow.tensors())
    assert found.keys() == {piece.block.tensor.name for piece in shadow.layout.pieces}
    for piece in shadow.layout.pieces:
        block, name = piece.block, piece.block.tensor.name
        held, right = found[name], expected[name]
        assert held.shape == right.shape
        if block.tensor.shape:
            ends = (block.tensor.axis, block.start, block.stop - block.start)
            held, right = held.narrow(*ends), right.narrow(*ends)
        assert torch.equal(held, right)


@pytest.mark.parametrize("parts", [(0, 4), (2, 6), (0, 8)])
def test_a_rank_assembles_its_part_alone(parts):
    wide = TensorInfo("wide", "BF16", (1000, 8), 1, (2, 4, 6))
    odd = TensorInfo("odd", "F32", (1000, 8), 1, (2, 4, 5, 6))
    shadow = Shadow(manifest_of(*MANIFEST.tensors[:1], wide, odd))
    expected = fill(shadow)
    asked = []

    def part(tensor):
        asked.append(tensor.name)
        return parts

    found = dict(open_shadow(shadow.path, shadow.description(), MemoryReader(), 0, part))
    assert asked == ["wide", "odd"]
    length = parts[1] - parts[0]
    for name in asked:
        tensor, right = found[name], expected[name]
        assert tensor.shape == right.shape
        assert torch.equal(tensor[:, parts[0] : parts[1]], right[:, parts[0] : parts[1]])
        assert tensor.untyped_storage().nbytes() <= tensor.itemsize * (1000 * length + 8)


@pytest.mark.parametrize("part", [(2, 6), (4, 4), (0, 8)])
@pytest.mark.parametrize(
    "tensor",
    [
        TensorInfo("wide", "BF16", (30, 8), 1, (2, 4, 6)),
        TensorInfo("high", "F32", (8, 30), 0, (2, 4, 6)),
        TensorInfo("flat", "F32", (8,), 0, (2, 4, 6)),
        TensorInfo("deep", "F32", (3, 8, 5), 1, (2, 4, 6)),
    ],
)
def test_a_part_is_found_in_its_blocks_where_they_lie(tensor, part):
    shadow = Shadow(manifest_of(MANIFEST.tensors[0], tensor))
    expected = fill(shadow)[tensor.name].narrow(tensor.axis, part[0], part[1] - part[0])
    found = list(open_blocks(shadow.path, shadow.description(), MemoryReader()))
    assert [stored.info.name for stored in found] == [MANIFEST.tensors[0].name, tensor.name]
    target = torch.zeros(expected.shape, dtype=expected.dtype)
    for first, block in found[1].within(*part):
        target.narrow(tensor.axis, first, block.shape[tensor.axis]).copy_(block)
    assert torch.equal(target, expected)


def test_a_part_that_is_not_all_there_is_refused():
    tensor = TensorInfo("wide", "BF16", (30, 8), 1, (2, 4, 6))
    shadow = Shadow(manifest_of(tensor), ((0, 2),))
    (stored,) = open_blocks(shadow.path, shadow.description(), MemoryReader())
    assert len(stored.within(0, 4)) == 2
    for part in ((0, 6), (1, 4)):
        with pytest.raises(InputError, match="wide: . of .* are in this shadow"):
            stored.within(*part)


def test_another_process_maps_the_shadow():
    shadow = Shadow(MANIFEST, ((0, 5), (6, 7)))
    expected = fill(shadow)
    content = shadow.buffer.clone()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply_async(_read, (shadow.path, shadow.description())).get(LONG)
    assert list(found) == ["rows", "columns", "scale"]
    assert all(values == expected[name].tolist() for name, values in found.items())
    assert torch.equal(shadow.buffer, content)


def _read(path, description):
    found = open_shadow(path, description, MemoryReader())
    return {name: tensor.tolist() for name, tensor in found}


def test_a_reader_keeps_a_shadow_mapped_for_its_next_version_until_its_owner_lets_go_of_it():
    def rows_of(shadow, seed):
        expected = fill(shadow, seed)["rows"]
        found = dict(open_shadow(shadow.path, shadow.description(), reader))["rows"]
        assert torch.equal(found, expected)
        return found.data_ptr()

    reader = MemoryReader()
    first, other = Shadow(MANIFEST), Shadow(MANIFEST)
    address = rows_of(first, 1)
    assert rows_of(Shadow(MANIFEST, reuse=first), 2) == address != rows_of(other, 3)
    assert reader._mapped.keys() == {first.path, other.path}
    del first
    rows_of(other, 4)
    assert reader._mapped.keys() == {other.path}


def test_a_shadow_that_is_gone_or_of_another_size_is_refused():
    shadow = Shadow(MANIFEST)
    path, description = shadow.path, shadow.description()
    with pytest.raises(TransferError, match="the manifest asks for"):
        open_shadow(path, description | {"ranges": [[0, 1]]}, MemoryReader())
    descriptors = len(os.listdir("/proc/self/fd"))
    del shadow
    assert len(os.listdir("/proc/self/fd")) < descriptors
    with pytest.raises(TransferError, match="gone"):
        open_shadow(path, description, MemoryReader())


def test_what_is_registered_ends_before_the_memory_is_unmapped():
    """Which is when the last view is dropped: a card that still wrote there would hit other memory."""
    memory, events = HostMemory(2**20), []

    def begin(address, num_bytes):
        events.append((address, num_bytes))
        return lambda: events.append(is_mapped(address))

    memory.register("card", begin)
    memory.register("card", begin)
    memory.register("refused", lambda *where: None)
    address, view = memory.buffer.data_ptr(), memory.buffer[3:5]
    del memory
    assert events == [(address, 2**20)] and view.tolist() == [0, 0]
    del view
    assert events == [(address, 2**20), True] and not is_mapped(address)


def is_mapped(address: int) -> bool:
    with open("/proc/self/maps", encoding="ascii") as lines:
        return any(line.startswith(f"{address:x}-") for line in lines)


def test_a_lack_of_memory_is_an_error_and_leaks_nothing():
    descriptors = os.listdir("/proc/self/fd")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))  # Also bounds files without a name.
    try:
        with pytest.raises(TransferError, match="no room for 2 MiB of weights on the host"):
            HostMemory(2**21)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir("/proc/self/fd") == descriptors
