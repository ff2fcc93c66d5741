from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weights.version.digest import digest_tensor, digest_value


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
    assert digest_value(torch.empty(0, 3)) == digest_tensor(torch.empty(0).byte())


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
