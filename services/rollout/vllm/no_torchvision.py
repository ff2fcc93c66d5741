"""Vision-language models in vLLM without torchvision, which CPU installations lack.

vLLM and transformers look for torchvision when they build the model's own processor. We give vLLM
processed images and no videos, so nothing of torchvision is ever used; it only must not be asked for.
Three places ask, each of them at the start:

1. vLLM imports `smart_resize` from the module of transformers' image processor on torchvision. The
   module of the processor on PIL has the same function.
2. transformers' processor of such a model loads a video processor, and there is none without
   torchvision. A stand-in holds the numbers by which vLLM computes the size of the largest video.
3. transformers checks the class of what it has loaded. The stand-in passes.

With torchvision nothing is touched.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypedDict

IMAGE_MODULE = "transformers.models.qwen2_vl.image_processing_qwen2_vl"
PIL_MODULE = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"


class NoArguments(TypedDict):
    """No argument of vLLM's for its processor is for videos. vLLM 0.32 asks."""


class NoVideos(dict[str, Any]):
    """In the place of a video processor. Its largest video is as small as one can be. An empty dict, as
    transformers writes all its processors down as JSON."""

    valid_kwargs: ClassVar[type] = NoArguments

    def __init__(self, patch_size: int, merge_size: int, temporal_patch_size: int) -> None:
        super().__init__()
        self.patch_size, self.merge_size = patch_size, merge_size
        self.temporal_patch_size = temporal_patch_size
        pixels = temporal_patch_size * (patch_size * merge_size) ** 2
        self.size = {"shortest_edge": pixels, "longest_edge": pixels}
        self.fps = self.min_frames = self.max_frames = temporal_patch_size

    def to_dict(self) -> dict[str, Any]:
        """transformers shows its processors so."""
        return dict(self)


def do_without_torchvision(model_folder: Path) -> None:
    """Before vLLM imports the model's class. `model_folder`: of a vision-language model."""
    if find_spec("torchvision") is not None:
        return
    from transformers.models.auto.video_processing_auto import AutoVideoProcessor
    from transformers.processing_utils import ProcessorMixin

    vision = json.loads((model_folder / "config.json").read_text("utf-8"))["vision_config"]
    stand_in = NoVideos(
        vision["patch_size"], vision["spatial_merge_size"], vision["temporal_patch_size"]
    )
    sys.modules[IMAGE_MODULE] = importlib.import_module(PIL_MODULE)

    def load(*_: Any, **__: Any) -> NoVideos:
        return stand_in

    AutoVideoProcessor.from_pretrained = load
    check = ProcessorMixin.check_argument_for_proper_class

    def check_others(self: Any, argument_name: str, argument: Any) -> Any:
        if isinstance(argument, NoVideos):
            return NoVideos
        return check(self, argument_name, argument)

    ProcessorMixin.check_argument_for_proper_class = check_others
