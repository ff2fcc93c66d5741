"""What a vision tower keeps from its forward pass until its backward pass.

Seen with `torch.autograd.graph.saved_tensors_hooks` on transformers' towers, and of the same kind as `layer.py`.
With C channels of the tower, F of its MLP, B blocks, e bytes of a number, for each patch:

    e B (8 C + 2 F)      Qwen3-VL: layer norms, an MLP of two matrices
    e B (8 C + 4 F)      Qwen2.5-VL: a gated MLP; its RMS norms keep 2 x 8 C bytes more, in float32

Of a tower that is frozen nothing is kept. How many of a prompt's tokens are images nobody knows before a run:
all of them, as the most that there can be.
"""

from __future__ import annotations

from trimaran.memory.layer import FP32
from trimaran.memory.model import Model
from trimaran.memory.work import Work


def tower_bytes(model: Model, work: Work) -> float:
    """For each packed token of a micro-batch, where its prompts are images alone; 0 without a tower.

    Every tensor-parallel rank sees all images, so nothing divides it.
    """
    facts = model.facts.vision
    if facts is None:
        return 0.0
    hidden, inner, size = facts.hidden_size, facts.intermediate_size, model.number_bytes
    numbers = 8 * hidden + (4 if facts.is_gated else 2) * inner
    block = size * numbers + (2 * 2 * FP32 * hidden if facts.is_gated else 0)
    return facts.depth * block * facts.merged * work.prompt / work.group_tokens
