"""Images in vLLM: its arguments for a vision-language model, and a prompt that its processor skips.

vLLM would decode, resize and normalize images itself, by libraries of its own. So it gets what our
processor has made of them (`trimaran.data.images`), which is also what the trainer learns from.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import BatchFeature
from vllm.inputs.engine import mm_input
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

from services.rollout.images import PlacedImages
from trimaran.config import RunConfig
from trimaran.model.folder import read_model_folder
from trimaran.model.vision_tower import VisionFacts

IMAGE = "image"
"""vLLM's name of this kind of input."""
FP32, GIB = 4, 1 << 30
SLACK = 1 << 20
"""For grids and the like."""


def image_arguments(config: RunConfig) -> dict[str, Any]:
    """Engine arguments on top of those of a text model."""
    vision = read_model_folder(config.model.path).vision
    assert vision is not None
    square = (vision.patch_size * vision.merge_size) ** 2
    arguments: dict[str, Any] = {
        # The model's class asks its processor, and that its tokenizer, how large an image can be.
        "skip_tokenizer_init": False,
        "limit_mm_per_prompt": {IMAGE: config.rollout.limit_images, "video": 0},
        # At its start vLLM makes room for the largest image, which is one that fills a prompt.
        "mm_processor_kwargs": {
            "size": {
                "shortest_edge": square,
                "longest_edge": square * config.rollout.max_prompt_tokens,
            }
        },
        # In vLLM's core: a prompt's patches, which its first request brings and the others read.
        "mm_processor_cache_gb": _prompt_bytes(vision, config.rollout.max_prompt_tokens) / GIB,
    }
    if config.rollout.tensor_parallel > 1:
        # Each rank has the whole tower and takes some of the images. A tower that is split has parts
        # of its fused projections on each rank, which cannot be read back.
        arguments["mm_encoder_tp_mode"] = "data"
    return arguments


def _prompt_bytes(vision: VisionFacts, tokens: int) -> int:
    """The bytes of a prompt that is images from end to end. In float32, as vLLM's own processor makes a trial image
    at its start; what is cached here is in the model's dtype."""
    return tokens * vision.merged * vision.patch_numbers * FP32 + SLACK


def normalize_once(arguments: Any) -> None:
    """Newer vLLMs normalize pixels on the device, as long as these `AsyncEngineArgs` do not say otherwise.

    Ours are normalized already. And the constants of vLLM's layer for it are in no checkpoint, so with
    `load_format=dummy` it would make them up.
    """
    if hasattr(arguments, "mm_device_do_normalize"):
        arguments.mm_device_do_normalize = False


def prompt_with_images(token_ids: list[int], images: PlacedImages, dtype: str | None) -> Any:
    """What `AsyncLLM.add_request` takes. `token_ids`: expanded, with what a completion has already.
    `dtype`: torch's name of that in which the tower computes. None: without the patches, which vLLM's core has from
    the request before.

    The core keeps patches of images, their features, and keys and values of prompts with images, each by the
    digest that an image has here.
    """
    items = (
        _items(images, dtype)
        if dtype
        else MultiModalKwargsItems({IMAGE: [None] * len(images.ranges)})
    )
    ranges = [PlaceholderRange(offset=start, length=length) for start, length in images.ranges]
    return mm_input(token_ids, items, {IMAGE: list(images.processed.digests)}, {IMAGE: ranges})


def _items(images: PlacedImages, dtype: str) -> MultiModalKwargsItems[Any]:
    grids = torch.from_numpy(images.processed.grids)
    patches = torch.from_numpy(images.processed.patches).to(getattr(torch, dtype))
    return MultiModalKwargsItems.from_hf_inputs(
        BatchFeature({"pixel_values": patches, "image_grid_thw": grids}),
        {
            "pixel_values": MultiModalFieldConfig.flat_from_sizes(IMAGE, grids.prod(-1)),
            "image_grid_thw": MultiModalFieldConfig.batched(IMAGE, keep_on_cpu=True),
        },
    )
