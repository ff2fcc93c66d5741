import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weights.version.digest import digest_tensor, digest_value
from weights.version.manifest import digest_bytes


def as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0).byte()


def test_every_flipped_bit_is_found():
    data = bytearray(hashlib.shake_256(b"bits").digest(101))
    right = digest_tensor(as_tensor(bytes(data)))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert digest_tensor(as_tensor(bytes(data))) != right
        data[bit // 8] ^= 1 << bit % 8


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_swapped_moved_and_lost_bytes_are_found(data):
    size = data.draw(st.sampled_from([8, 999, 8194, 16384]))
    right = bytearray(hashlib.shake_256(b"%d" % size).digest(size))
    first, second = data.draw(st.tuples(*[st.integers(0, size // 2 - 1)] * 2))
    swapped = bytearray(right)
    swapped[2 * first : 2 * first + 2] = right[2 * second : 2 * second + 2]
    swapped[2 * second : 2 * second + 2] = right[2 * first : 2 * first + 2]
    wrong = [bytes(right[1:] + right[:1]), bytes(right[:-1]), bytes(right) + b"\0"]
    wrong += [bytes(swapped)] if swapped != right else []
    for other in wrong:
        assert digest_tensor(as_tensor(other)) != digest_tensor(as_tensor(bytes(right)))


def test_zeros_of_different_lengths_differ():
    lengths = [0, 1, 2, 3, 8192, 8193, 16384]
    assert len({digest_tensor(as_tensor(bytes(n))) for n in lengths}) == len(lengths)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int64]
)
def test_a_value_is_digested_row_major_whatever_its_strides(dtype):
    tensor = torch.arange(105).reshape(7, 15).to(dtype)
    right = digest_tensor(tensor.view(torch.uint8).view(-1))
    assert digest_value(tensor) == right
    assert digest_value(tensor.t().contiguous().t()) == right
    assert digest_value(torch.nn.functional.pad(tensor, (3, 2))[:, 3:-2]) == right
    assert digest_value(tensor.t()) != right


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_minus_zero_counts_as_zero_and_nothing_else_does(dtype):
    signed = torch.tensor([0.0, -0.0, -1.5, float("nan"), float("-inf")], dtype=dtype)
    plain = torch.tensor([0.0, 0.0, -1.5, float("nan"), float("-inf")], dtype=dtype)
    right = digest_value(plain)
    assert digest_value(signed) == digest_value(signed, right) == right
    assert digest_value(plain, right) == right
    assert digest_value(plain + 1, right) == digest_value(plain + 1) != right
    assert digest_tensor(signed.view(torch.uint8)) != digest_value(plain)
    smallest = torch.tensor([torch.finfo(dtype).smallest_normal / 4], dtype=dtype)
    assert digest_value(smallest) != digest_value(torch.zeros(1, dtype=dtype))


def test_scalars_and_nothing_have_digests():
    scalar = torch.tensor(2.5, requires_grad=True)
    assert digest_value(scalar) == digest_value(torch.tensor([2.5]))
    assert digest_value(torch.empty(0, 3)) == digest_tensor(as_tensor(b""))


def test_xxh3_is_that_of_the_bytes():
    assert digest_tensor(as_tensor(b"abc")) == digest_bytes(b"abc")


class OnAnNpu:
    """Of a tensor there, only what needs no arithmetic of the device."""

    device = SimpleNamespace(type="npu")

    def __init__(self, tensor):
        self._tensor = tensor

    def detach(self):
        return self

    def cpu(self):
        return self._tensor


def test_an_npu_computes_no_digest():
    """Whether it has the types that the arithmetic needs is not known."""
    tensor = torch.tensor([-0.0, 1.5, 3.25])
    there: Any = OnAnNpu(tensor)
    assert digest_value(there) == digest_value(tensor)
    there = OnAnNpu(tensor.view(torch.uint8))
    assert digest_tensor(there) == digest_tensor(tensor.view(torch.uint8))
