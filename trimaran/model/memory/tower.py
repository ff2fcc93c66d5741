"""What a vision tower keeps from its forward pass until its backward pass.

Seen with `torch.autograd.graph.saved_tensors_hooks` on transformers' towers, and of the same kind as `layer.py`.
With C channels of the tower, F of its MLP, B blocks, M mergers, D numbers of a patch, e bytes of a number, for
each patch:

    e (B (11 C + 2 F) + 3 M C + D)                    Qwen3-VL: layer norms, an MLP of two matrices
    e (B (11 C + 4 F) + 3 C + D) + 4 (2 B + 1) C      Qwen2.5-VL: a gated MLP, RMS norms in float32

Of a tower that is frozen nothing is kept for that, but its features for all passes of a step, on the host: with H
channels of the language model and S layers of deepstack e H (1 + S) bytes for each image token. How many of a prompt's tokens are images is not known before a run:
all of them, as the most that there can be.
"""

from __future__ import annotations

from trimaran.model.memory.layer import FP32
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.work import Work
from trimaran.model.vision_tower import VisionFacts


def tower_bytes(model: ModelSizes, work: Work) -> float:
    """For each packed token of a micro-batch, where its prompts are images alone; 0 without a tower.

    Every tensor-parallel rank sees all images, so nothing divides it.
    """
    facts = model.facts.vision
    if facts is None:
        return 0.0
    image_token = facts.merged * patch_bytes(facts, model.number_bytes)
    return image_token * work.prompt / work.group_tokens


def feature_bytes(model: ModelSizes) -> int:
    """Bytes of one image token's features; 0 without a tower."""
    facts = model.facts
    if facts.vision is None:
        return 0
    return model.number_bytes * facts.hidden_size * (1 + facts.vision.num_deepstack)


def patch_bytes(facts: VisionFacts, size: int) -> int:
    """`size`: bytes of a number."""
    hidden, inner = facts.hidden_size, facts.intermediate_size
    block = 11 * hidden + (4 if facts.is_gated else 2) * inner
    mergers = 3 * hidden * (1 + facts.num_deepstack)
    norms = FP32 * (2 * facts.depth + 1) * hidden if facts.is_gated else 0
    return size * (facts.depth * block + mergers + facts.patch_numbers) + norms
