"""Public models, by the numbers of their config.json."""

from __future__ import annotations

from dataclasses import replace

from trimaran.model.folder import ModelFacts
from trimaran.model.memory.model import ModelSizes
from trimaran.model.vision_tower import VisionFacts


def _facts(
    family: str,
    layers: int,
    hidden: int,
    inner: int,
    heads: int,
    keys: int,
    experts: tuple[int, int, int] = (0, 0, 0),
) -> ModelFacts:
    """Of a Qwen model with an output layer of its own; heads have 128 channels. `experts`: their number,
    those of a token, the inner size of one."""
    vocabulary, positions = (152064, 32768) if family == "qwen2" else (151936, 40960)
    sizes = layers, hidden, inner, heads, keys
    return ModelFacts(family, *sizes, 128, vocabulary, False, positions, *experts)


QWEN25_7B = ModelSizes(_facts("qwen2", 28, 3584, 18944, 28, 4))
QWEN25_32B = ModelSizes(_facts("qwen2", 64, 5120, 27648, 40, 8))
QWEN3_30B = ModelSizes(_facts("qwen3_moe", 48, 2048, 6144, 32, 4, experts=(128, 8, 768)))
QWEN25_VL_7B = ModelSizes(
    replace(
        _facts("qwen2_5_vl", 28, 3584, 18944, 28, 4),
        vocab_size=152064,
        vision=VisionFacts(32, 1280, 3420, 16, 3, 14, 2, 2, image_token_id=151655),
    )
)
QWEN3_235B = ModelSizes(_facts("qwen3_moe", 94, 4096, 12288, 64, 4, experts=(128, 8, 1536)))
