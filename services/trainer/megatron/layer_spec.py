"""The layers of megatron-core's model, with our own attention, norms and activation in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

from services.trainer.megatron.attention.attention import PackedAttention
from services.trainer.megatron.attention.latent import LatentAttention
from services.trainer.megatron.lean import GeGLU, SwiGLU, rms_norm
from trimaran.model.families.family import Family
from trimaran.model.folder import ModelFacts


class RMSNorm(torch.nn.RMSNorm):
    def __init__(self, config: Any, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        # With sequence parallelism a rank sees its share of the tokens only: finalize_model_grads
        # sums what is marked so.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self._is_around_one = config.layernorm_zero_centered_gamma

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.eps is not None
        if self._is_around_one:  # in bfloat16 the sum would lose bits of w
            weight = 1.0 + self.weight.float()
            return rms_norm(x.float(), weight, self.eps).to(x.dtype)
        return rms_norm(x, self.weight, self.eps)


class NormBehind(torch.nn.Module):
    """Where megatron-core adds the output of attention or MLP to the stream: with a norm before that."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm = RMSNorm(config, config.hidden_size, config.layernorm_epsilon)

    def forward(self, *_: bool) -> Callable[..., torch.Tensor]:
        return self._add

    def _add(
        self, output_with_bias: tuple[torch.Tensor, None], residual: torch.Tensor, _: float
    ) -> torch.Tensor:
        return residual + self.norm(output_with_bias[0])


def block_spec(
    config: TransformerConfig, facts: ModelFacts, layers: Sequence[int]
) -> TransformerBlockSubmodules:
    """Those of one stage. `layers`: their numbers."""
    norm: Any = RMSNorm
    specs = [_layer_spec(config, facts.described, facts.has_experts(layer)) for layer in layers]
    return TransformerBlockSubmodules(layer_specs=specs, layer_norm=norm)


def _layer_spec(config: TransformerConfig, family: Family, has_experts: bool) -> ModuleSpec:
    layer = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if has_experts else None,
        normalization="RMSNorm",
        qk_layernorm=bool(config.qk_layernorm),
        multi_latent_attention=config.multi_latent_attention,
    )
    parts: Any = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    mlp = _parts_of(parts.mlp)
    for one in (_parts_of(mlp.experts), _parts_of(mlp.shared_experts)) if has_experts else (mlp,):
        one.activation_func = SwiGLU if family.activation == "silu" else GeGLU
    if family.norms_behind:
        parts.self_attn_bda = parts.mlp_bda = ModuleSpec(NormBehind, params={"config": config})
    attention = parts.self_attention.submodules
    attention.core_attention = PackedAttention
    if config.multi_latent_attention:
        parts.self_attention.module = LatentAttention
        attention.q_layernorm = attention.kv_layernorm = RMSNorm
    elif config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return layer


def _parts_of(part: Any) -> Any:
    """megatron-core describes an MLP by a ModuleSpec in 0.16, and by what makes it in 0.19."""
    return part.keywords["submodules"] if isinstance(part, partial) else part.submodules
