from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.errors import InputError, TransferError
from trimaran.types import Manifest, TensorInfo
from weights.version.layout import numbers_of, to_ranges
from weights.version.manifest import (
    ITEM_BYTES,
    build_manifest,
    check_manifest,
    compute_root,
    digest_bytes,
    list_blocks,
    manifest_from_json,
    manifest_to_json,
    narrow,
    num_bytes,
    same_tensors,
)

digests = st.integers(0, 9).map(lambda number: digest_bytes(b"%d" % number))


@st.composite
def tensor_infos(draw):
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
    axis = draw(st.integers(0, max(len(shape) - 1, 0)))
    length = shape[axis] if shape else 1
    cuts = sorted(draw(st.sets(st.integers(1, length - 1), max_size=3))) if length > 1 else []
    return TensorInfo(
        draw(st.text(min_size=1, max_size=8)),
        draw(st.sampled_from(sorted(ITEM_BYTES))),
        shape,
        axis,
        tuple(cuts),
        tuple(draw(st.lists(digests, min_size=len(cuts) + 1, max_size=len(cuts) + 1))),
    )


infos = st.lists(tensor_infos(), max_size=6, unique_by=lambda info: info.name)


@settings(deadline=None)
@given(infos)
def test_blocks_cover_every_tensor_once(tensors):
    blocks = list_blocks(tensors)
    assert [block.number for block in blocks] == list(range(len(blocks)))
    for tensor in tensors:
        own = [block for block in blocks if block.tensor is tensor]
        length = tensor.shape[tensor.axis] if tensor.shape else 1
        elements = [e for block in own for e in range(block.start, block.stop)]
        assert elements == list(range(length))
        assert sum(block.num_bytes for block in own) == num_bytes(tensor)
        assert [block.index for block in own] == list(range(tensor.num_blocks))


@settings(deadline=None)
@given(infos, st.data())
def test_a_narrowed_manifest_names_the_same_blocks_and_no_other_tensors(tensors, data):
    manifest = build_manifest(tensors)
    numbers = st.integers(0, max(manifest.num_blocks - 1, 0))
    wanted = to_ranges(data.draw(st.sets(numbers)) if manifest.num_blocks else ())
    part, ranges = narrow(manifest, wanted)
    blocks, own = list_blocks(manifest.tensors), list_blocks(part.tensors)
    named = [blocks[number] for number in numbers_of(wanted)]
    found = [own[number] for number in numbers_of(ranges)]
    assert [(b.tensor, b.index) for b in found] == [(b.tensor, b.index) for b in named]
    if named:
        assert (part.tensors[0], part.tensors[-1]) == (named[0].tensor, named[-1].tensor)
    else:
        assert not part.tensors


@settings(deadline=None)
@given(infos, st.randoms())
def test_root_does_not_depend_on_the_order(tensors, random):
    shuffled = list(tensors)
    random.shuffle(shuffled)
    assert compute_root(shuffled) == compute_root(tensors)


@settings(deadline=None)
@given(infos.filter(bool), st.data())
def test_root_depends_on_every_field(tensors, data):
    at = data.draw(st.integers(0, len(tensors) - 1))
    old = tensors[at]
    changed = data.draw(st.integers(0, len(old.digests) - 1))
    digests = [*old.digests]
    digests[changed] = digest_bytes(b"another")
    changes: dict[str, Any] = {"name": old.name + "x", "shape": (*old.shape, 1)}
    changes |= {"dtype": "F64" if old.dtype != "F64" else "I64", "axis": old.axis + 1}
    changes |= {"cuts": (*old.cuts, 100), "digests": tuple(digests)}
    field = data.draw(st.sampled_from([*changes]))
    new = replace(old, **{field: changes[field]})
    root = compute_root(tensors)
    assert compute_root([*tensors[:at], new, *tensors[at + 1 :]]) != root
    assert compute_root([*tensors[:at], *tensors[at + 1 :]]) != root


@settings(deadline=None)
@given(infos)
def test_manifest_survives_json(tensors):
    manifest = build_manifest(tensors)
    assert manifest_from_json(manifest_to_json(manifest)) == manifest
    check_manifest(manifest, manifest.root)


GOOD = TensorInfo("w", "F32", (2,), 0, (), (digest_bytes(b""),))


def test_a_manifest_must_be_that_of_the_version():
    good = build_manifest([GOOD])
    changed = Manifest((replace(GOOD, shape=(3,)),), good.root)
    for manifest, root in ((good, "another"), (changed, good.root)):
        with pytest.raises(TransferError, match="roots differ"):
            check_manifest(manifest, root)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"digests": ()}, "w: 1 blocks, but 0 digests"),
        ({"digests": ("zz" * 16,)}, "w: a digest is not 32 hex digits"),
        ({"shape": (-2,)}, "w: .* negative length"),
        ({"axis": 1}, "w: .* no axis 1"),
        ({"cuts": (2,)}, "w: cuts .* must rise inside 0..2"),
        ({"dtype": "F8_E4M3"}, "w: dtype F8_E4M3 cannot travel"),
    ],
)
def test_a_manifest_that_makes_no_sense_names_its_tensor(change, what):
    with pytest.raises(TransferError, match=what):
        check_manifest(Manifest((replace(GOOD, **change),), "root"), "root")


def test_bad_tensors_are_named():
    twice = TensorInfo("w", "F32", (1,))
    with pytest.raises(InputError, match="w: stands twice"):
        build_manifest([twice, twice])
    with pytest.raises(InputError, match="w: a scalar cannot be cut"):
        build_manifest([TensorInfo("w", "F32", (), 0, (1,))])


def test_the_same_model_whatever_its_values():
    tensor = TensorInfo("w", "F32", (4,), 0, (2,), ("0" * 32, "1" * 32))
    assert same_tensors([tensor], [replace(tensor, digests=())])
    assert not same_tensors([tensor], [replace(tensor, cuts=(1,))])
    assert not same_tensors([tensor], [])
