import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.errors import TransferError
from trimaran.types import TensorInfo
from weights.delta.changed_elements import apply_pieces, as_bits, decode_piece, encode_piece, undo
from weights.delta.delta_stage import apply_verified
from weights.memory.shadow import Shadow
from weights.sending.snapshot import TensorPart, take_snapshot
from weights.version.digest import digest_tensor
from weights.version.manifest import ITEM_BYTES, Block, list_digests


def block_of(dtype: str, count: int) -> Block:
    return Block(7, TensorInfo("w", dtype, (count,)), 0, 0, count)


def become(block: Block, old: np.ndarray, piece: bytes) -> np.ndarray:
    new = old.copy()
    change = decode_piece(block, piece, old)
    new[change.positions] = change.values
    return new


@st.composite
def old_and_new(draw):
    """Any bits (NaNs with payloads, both zeros, infinities), few, many or all of them changed."""
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    size = ITEM_BYTES[dtype]
    count = draw(st.sampled_from([0, 1, 2, 300, 5000]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    old = as_bits(random.integers(0, 256, count * size, dtype=np.uint8), size)
    new = old.copy()
    here = random.random(count) < draw(st.sampled_from([0.0, 0.0005, 0.02, 0.4, 1.0]))
    if draw(st.booleans()):
        step = random.choice(np.array([1, 2, 2**63 - 1, 2**64 - 1], np.uint64))
        new[here] += step.astype(new.dtype)
    else:
        fresh = random.integers(0, 256, count * size, dtype=np.uint8)
        new[here] = as_bits(fresh, size)[here]
    special = [0, 1 << (8 * size - 1), (1 << (8 * size)) - 1, 0x7F, (1 << (8 * size - 1)) - 1]
    for place in draw(st.lists(st.integers(0, count - 1), max_size=4)) if count else []:
        old[place], new[place] = draw(st.tuples(*[st.sampled_from(special)] * 2))
    return block_of(dtype, count), old, new


@settings(max_examples=300, deadline=None)
@given(old_and_new())
def test_a_piece_turns_old_bits_into_new_ones(case):
    block, old, new = case
    piece = encode_piece(old, new)
    assert become(block, old, piece).tobytes() == new.tobytes()
    assert (piece == b"") == (old.tobytes() == new.tobytes())
    assert len(piece) <= 1 + new.nbytes


def test_no_flipped_bit_of_a_piece_hides_a_change():
    """A neighbour takes positions from pieces that it cannot compare with a digest; values lie in the shadow."""
    block, old = block_of("BF16", 400), np.zeros(400, np.uint16)
    new = old.copy()
    new[[2, 3, 250, 399]] = [1, 0xFFFF, 64, 1]
    piece = encode_piece(old, new)
    num_refused = 0
    for bit in range(8 * len(piece)):
        flipped = bytearray(piece)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            positions = decode_piece(block, bytes(flipped), new).positions
        except TransferError:
            num_refused += 1
        else:
            assert {2, 3, 250, 399} <= set(np.arange(400)[positions].tolist())
    assert num_refused > 7 * len(piece)


def test_the_format_of_a_piece():
    old = np.zeros(400, np.uint16)
    everywhere = np.arange(1, 401, dtype=np.uint16)
    assert encode_piece(old, everywhere) == b"\0" + everywhere.tobytes()
    new = old.copy()
    new[[2, 3, 399]] = [1, 0xFFFF, 64]
    piece = encode_piece(old, new)
    assert struct.unpack("<BQ", piece[:9]) == (1, 3)
    # Gaps 2, 0 and 395 = 3 * 128 + 11; steps +1, -1 and +64 = zigzag 2, 1 and 128.
    assert zlib.decompress(piece[9:]) == bytes([2, 0, 128 + 11, 3, 2, 1, 128, 1])


def test_steps_of_one_in_three_per_cent_of_bf16_take_less_than_a_twentieth():
    random = np.random.default_rng(0)
    old = random.integers(0, 2**16, 200_000).astype(np.uint16)
    new = old.copy()
    here = random.random(old.size) < 0.03
    new[here] += random.choice(np.array([1, 0xFFFF], np.uint16), here.sum())
    assert len(encode_piece(old, new)) < 0.02 * new.nbytes


def sparse(count: int, packed: bytes) -> bytes:
    return struct.pack("<BQ", 1, count) + zlib.compress(packed)


@pytest.mark.parametrize(
    ("piece", "what"),
    [
        (b"\0abc", "3 bytes instead of 20"),
        (b"\2", "it starts with 02"),
        (b"\1\0\0", "it starts with 01 and has 3 bytes"),
        (sparse(0, b""), "0 changes in 10 elements"),
        (sparse(11, bytes([0, 2] * 11)), "11 changes in 10 elements"),
        (struct.pack("<BQ", 1, 1) + b"no zlib", "incorrect header"),
        (sparse(1, bytes([0, 2]))[:-1], "too early or too late"),
        (sparse(1, bytes([0, 2])) + b"x", "too early or too late"),
        (sparse(1, bytes(10**6)), "too early or too late"),
        (sparse(1, bytes([0])), "1 numbers instead of 2"),
        (sparse(1, bytes([0, 2, 2])), "3 numbers instead of 2"),
        (sparse(1, bytes([0, 2, 128])), "2 numbers instead of 2"),
        (sparse(1, bytes([10, 2])), "a change lies beyond its 10 elements"),
        (sparse(2, bytes([8, 1, 2, 2])), "a change lies beyond its 10 elements"),
        (sparse(1, b"\xff" * 9 + b"\1" + b"\2"), "a change lies beyond its 10 elements"),
        (sparse(1, b"\x80" * 10 + b"\0" + b"\2"), "a number is too long"),
        (sparse(1, bytes([0, 0x80, 0x80, 4])), "a step is too large for the dtype"),
    ],
)
def test_a_malformed_piece_names_its_block(piece, what):
    old = np.zeros(10, np.uint16)
    with pytest.raises(TransferError, match=rf"block 7 \(w\): malformed piece .*{what}"):
        decode_piece(block_of("BF16", 10), piece, old)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.sampled_from([b"\0", b"\1", b"\1\2\0\0\0\0\0\0\0", b""]))
def test_any_bytes_decode_or_are_refused(noise, start):
    old = np.zeros(10, np.uint16)
    for piece in (start + noise, sparse(2, noise)):
        try:
            new = become(block_of("BF16", 10), old, piece)
        except TransferError:
            continue
        assert new.size == 10


TENSORS = (
    TensorInfo("rows", "BF16", (60, 8), 0, (20, 40)),
    TensorInfo("columns", "F32", (12, 32), 1, (16,)),
    TensorInfo("norm", "BF16", (5,)),
)
HELD = ((1, 4), (5, 6))


def snapshot(seed: int, share: float, reuse=None):
    """Values of seed 0, with a share of them moved."""
    torch.manual_seed(0)
    parts = []
    for t in TENSORS:
        tensor = torch.randn(t.shape)
        random = torch.Generator().manual_seed(seed)
        moved = torch.rand(t.shape, generator=random) < share
        tensor = torch.where(moved, tensor * 1.01 + 0.001, tensor)
        dtype = torch.bfloat16 if t.dtype == "BF16" else torch.float32
        parts.append(TensorPart(t.name, 0, t.shape[t.axis], tensor.to(dtype)))
    digests = dict(enumerate(list_digests(take_snapshot(TENSORS, parts, ((0, 6),)).manifest)))
    options = {"reuse": reuse, "keep_delta": reuse is not None}
    return take_snapshot(TENSORS, parts, HELD, lambda own: digests | own, **options)


@pytest.fixture
def base():
    return snapshot(1, 0.0)


@pytest.fixture
def shadow(base):
    """Of the base; no test that gives a delta up may leave it changed."""
    shadow = Shadow(base.manifest, HELD)
    shadow.buffer.copy_(base.buffer)
    before = shadow.buffer.clone()
    yield shadow
    assert torch.equal(shadow.buffer, before)


@pytest.mark.parametrize("share", [0.0, 0.05, 1.0])
def test_a_delta_turns_the_base_into_the_next_version_and_back(base, shadow, share):
    base_root = base.manifest.root
    following = snapshot(2, share, reuse=base)
    delta = following.delta
    assert delta is not None
    assert delta.base_root == base_root
    assert bool(delta.pieces) == (share > 0)
    kept = apply_pieces(shadow, delta.pieces)
    assert torch.equal(shadow.buffer, following.buffer)
    digests = list_digests(following.manifest)
    for piece in shadow.layout.pieces:
        found = digest_tensor(shadow.buffer[piece.start : piece.end])
        assert found == digests[piece.block.number]
    undo(shadow, kept)


def test_a_stage_that_is_given_up_leaves_the_base_as_it_was(base, shadow):
    before = shadow.buffer.clone()
    delta = snapshot(2, 0.5, reuse=base).delta
    assert delta is not None and len(delta.pieces) > 2
    for looks in (1, len(delta.pieces) + 1):  # while it is applied, and while it is verified
        left = iter(range(looks))

        def check(left=left):
            if next(left, None) is None:
                raise TransferError("given up")

        following = Shadow(snapshot(2, 0.5, reuse=base).manifest, HELD, reuse=shadow)
        with pytest.raises(TransferError, match="given up"):
            apply_verified(following, delta, check)
        assert torch.equal(shadow.buffer, before)


@pytest.mark.parametrize("wrong", [b"\2", b"\1short", None])
def test_a_malformed_piece_leaves_the_base_as_it_was(base, shadow, wrong):
    delta = snapshot(2, 0.5, reuse=base).delta
    assert delta is not None
    pieces = dict(delta.pieces)
    *_, last = pieces
    if wrong is None:
        pieces[0] = pieces.pop(last)  # Not held.
    else:
        pieces[last] = wrong
    with pytest.raises(TransferError, match="block 0: .*not held" if wrong is None else "block 5"):
        apply_pieces(shadow, pieces)
