"""Rotary position embedding: the formula, and its gradient, which is written by hand."""

from __future__ import annotations

import pytest
import torch

from services.trainer.megatron.attention.rotary import rotate


@pytest.mark.parametrize("channels", [8, 4])
def test_pairs_turn_and_so_do_their_gradients(channels: int) -> None:
    """Of a head of 8: all of its channels, or the first half."""
    torch.manual_seed(0)
    x_NHD = torch.randn(5, 2, 8, dtype=torch.float64, requires_grad=True)
    angles_ND = torch.randn(5, channels // 2, dtype=torch.float64).repeat(1, 2)
    turned = rotate(x_NHD, angles_ND.cos(), angles_ND.sin())
    first, second = x_NHD[..., :channels].chunk(2, dim=-1)
    pairs = torch.complex(first, second) * torch.exp(1j * angles_ND[:, None, : channels // 2])
    wanted = torch.cat([pairs.real, pairs.imag, x_NHD[..., channels:]], dim=-1)
    torch.testing.assert_close(turned, wanted)
    assert torch.autograd.gradcheck(lambda x: rotate(x, angles_ND.cos(), angles_ND.sin()), x_NHD)
