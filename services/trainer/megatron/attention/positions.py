"""Positions of packed tokens in sequence, height and width: multimodal rotary embedding.

Source: Qwen2-VL (arXiv 2409.12191). A text token has one position on all three axes. The tokens of an image
have that of its start in time, and count rows and columns from there; the text behind goes on after the
longer side:

    tokens   a  b  [image of 2 x 3 merged patches]  c
    time     0  1   2 2 2  2 2 2                    5
    height   0  1   2 2 2  3 3 3                    5
    width    0  1   2 3 4  2 3 4                    5

Each pair of channels turns by one axis (`axis_of_channels`). Axes: N packed tokens, P of a prompt, D
channels of a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from services.trainer.megatron.attention import segments
from services.trainer.step.packing import GroupLengths

Grid = tuple[int, int, int]
"""The grid of an image: merged patches in time, height and width."""
Places = tuple[torch.Tensor, int]
"""[3, P] of a prompt, and the position behind it."""


def axis_of_channels(sections: Sequence[int], interleaved: bool) -> torch.Tensor:
    """0 for time, 1 for height and 2 for width: which turns each pair, int64 [D / 2].

    `sections`: pairs of each axis. In runs (Qwen2.5-VL): t…t h…h w…w. Interleaved (Qwen3-VL): t h w t h w …,
    and what is left over to time.

    Example: axis_of_channels((2, 1, 1), interleaved=True).tolist() == [0, 1, 2, 0]
    """
    if not interleaved:
        return torch.arange(3).repeat_interleave(torch.tensor(sections))
    axis = torch.zeros(sum(sections), dtype=torch.int64)
    for one in (1, 2):
        axis[one : 3 * sections[one] : 3] = one
    return axis


def prompt_positions(is_image_P: torch.Tensor, grids: Sequence[Grid]) -> Places:
    """`is_image_P`: bool, of tokens that are places of images. `grids`: of these images, in order; they
    have as many tokens together."""
    parts: list[torch.Tensor] = []
    at = position = 0
    left = list(grids)
    while at < len(is_image_P):
        if is_image_P[at]:
            grid = left.pop(0)
            parts.append(_of_image(grid) + position)
            position += max(grid[1:])
        else:
            behind = is_image_P[at:].nonzero()
            length = int(behind[0]) if len(behind) else len(is_image_P) - at
            parts.append(torch.arange(position, position + length).expand(3, -1))
            position += length
        at += parts[-1].shape[1]
    return torch.cat(parts, dim=1), position


def _of_image(grid: Grid) -> torch.Tensor:
    """[3, its tokens], row by row."""
    return torch.stack(torch.meshgrid(*map(torch.arange, grid), indexing="ij")).flatten(1)


def packed_positions(groups: Sequence[GroupLengths], prompts: Mapping[int, Places]) -> torch.Tensor:
    """int64 [3, N]. `prompts`: of the groups with images, by their place among `groups`."""
    found = segments.positions(groups).repeat(3, 1)
    start = 0
    for place, group in enumerate(groups):
        if place in prompts:
            own, behind = prompts[place]
            found[:, start : start + group.prompt] = own
            # A completion goes on behind its prompt.
            found[:, start + group.prompt : start + group.num_tokens] += behind - group.prompt
        start += group.num_tokens
    return found
