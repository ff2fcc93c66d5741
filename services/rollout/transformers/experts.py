"""Which experts transformers' routers choose.

Axes: B completions of a batch, l positions of one forward pass, L layers, K experts of a token.
"""

from __future__ import annotations

from typing import Any

import torch


class ChosenExperts:
    """Of one forward pass after the other.

    Example:
        chosen = ChosenExperts(model)
        model(input_ids=tokens_Bl)
        experts_BlLK = chosen.take(*tokens_Bl.shape)
    """

    def __init__(self, model: torch.nn.Module) -> None:
        """Of Qwen2-MoE's or Qwen3-MoE's layers."""
        self._found: list[torch.Tensor] = []
        layers: Any = model.get_submodule("model.layers")
        self._two_bytes = model.config.num_experts > 256  # type: ignore[union-attr, operator]
        self._num_layers = len(layers)
        for layer in layers:
            layer.mlp.gate.register_forward_hook(self._note)

    def take(self, batch: int, positions: int) -> torch.Tensor:
        """uint8 [B, l, L x K, or twice as many bytes where an expert's number needs two]."""
        # A pass that failed may have left some in front.
        chosen = torch.stack(self._found[-self._num_layers :], dim=1).cpu()
        self._found.clear()
        numbers = chosen.to(torch.int16 if self._two_bytes else torch.uint8)
        return numbers.flatten(1).view(torch.uint8).view(batch, positions, -1)

    def _note(self, gate: object, inputs: object, output: tuple[torch.Tensor, ...]) -> None:
        """A router answers with logits, the weights of the chosen ones, and their numbers [B l, K]."""
        self._found.append(output[2])
