"""vLLM-Ascend's method of fused experts, as far as their weights are concerned."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.utils import replace_parameter


class AscendUnquantizedFusedMoEMethod(UnquantizedFusedMoEMethod):
    def process_weights_after_loading(self, layer: Any) -> None:
        for name in ("w13_weight", "w2_weight"):
            replace_parameter(layer, name, getattr(layer, name).data.transpose(1, 2).contiguous())
