"""A vision tower's features of images, computed once in a step where the tower does not train.

All passes of a step then see the same: the policy before its first update, the reference, and the loss in each
epoch. So do the pieces of a group that was cut. Features wait on the host, because those of a step may be as large
as the weights: 64 prompts of 4,096 image tokens and 3,584 channels in bfloat16 are 1.75 GiB, and with three
layers of deepstack 7. A pass takes those of one micro-batch at a time.

Axes: F places of images, C channels of the language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

Images = tuple[bytes, ...]
"""PNG files of one prompt."""


@dataclass(frozen=True, slots=True)
class SeenPrompt:
    """What is known of the images of one prompt, on the host."""

    images: Images
    digest: str
    """The digest of what the processor makes of them."""
    grids: torch.Tensor
    """int64 [images, 3]: patches in time, height and width."""
    num_places: int
    """Among the prompt's tokens."""
    patches: torch.Tensor | None
    """float32 [patches, numbers of one], of all images; None where features are kept."""


class KeptFeatures:
    """The features of one step, on this rank. A prompt is known by its images' bytes.

    Example: KeptFeatures().see(tower, images.prompts, torch.bfloat16, device)[0].shape == (F, C)
    """

    def __init__(self) -> None:
        self._kept: dict[Images, tuple[SeenPrompt, tuple[torch.Tensor, ...]]] = {}

    def find(self, images: Images) -> SeenPrompt | None:
        """Without patches: they are not needed again."""
        found = self._kept.get(images)
        return found and found[0]

    def see(
        self,
        tower: Any,
        prompts: Sequence[SeenPrompt],
        dtype: torch.dtype,
        device: torch.device,
    ) -> list[torch.Tensor]:
        """As the function `see`. The tower runs for prompts that it has not seen yet, all at a time."""
        fresh = {one.images: one for one in prompts if one.images not in self._kept}
        made = _by_prompt(tower, [*fresh.values()], dtype, device) if fresh else {}
        for images, features in made.items():
            on_host = tuple(one.to("cpu") for one in features)
            self._kept[images] = replace(fresh[images], patches=None), on_host
        found = [made.get(one.images) or self._fetch(one.images, device) for one in prompts]
        return [torch.cat(layer) for layer in zip(*found, strict=True)]

    def _fetch(self, images: Images, device: torch.device) -> tuple[torch.Tensor, ...]:
        return tuple(one.to(device) for one in self._kept[images][1])

    def clear(self) -> None:
        """At the end of a step."""
        self._kept.clear()


def _by_prompt(
    tower: Any, prompts: Sequence[SeenPrompt], dtype: torch.dtype, device: torch.device
) -> dict[Images, tuple[torch.Tensor, ...]]:
    counts = [one.num_places for one in prompts]
    parts = (layer.split(counts) for layer in see(tower, prompts, dtype, device))
    names = (one.images for one in prompts)
    return dict(zip(names, zip(*parts, strict=True), strict=True))


def see(
    tower: Any, prompts: Sequence[SeenPrompt], dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """[F, C] of the merger, then of each layer of deepstack. `prompts`: with their patches."""
    patches = [one.patches.to(device, dtype) for one in prompts if one.patches is not None]
    grids = torch.cat([one.grids for one in prompts])
    out = tower(torch.cat(patches), grid_thw=grids.to(device), return_dict=True)
    features = [out.pooler_output, *(getattr(out, "deepstack_features", None) or ())]
    return [one.to(dtype) for one in features]
