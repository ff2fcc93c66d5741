"""The GPT model of megatron-core with our own layer spec and a packed forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

from services.trainer.megatron.architecture import Architecture, inverse_frequencies
from services.trainer.megatron.attention import PackedAttention, build_layout
from services.trainer.megatron.logprobs import vocab_parallel_logprobs
from services.trainer.megatron.mapping import mark_shards
from services.trainer.packing import GroupLengths


class RMSNorm(torch.nn.RMSNorm):
    def __init__(self, config: Any, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)


class PackedGPT(GPTModel):
    """GPTModel that reads packed sequences and answers with log-probabilities."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype, device: torch.device):
        config = _transformer_config(architecture, dtype)
        parallel = config.tensor_model_parallel_size
        spec: Any = _block_spec(architecture.facts.num_layers)
        super().__init__(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=-(-architecture.facts.vocab_size // parallel) * parallel,
            max_sequence_length=architecture.facts.max_positions,
            share_embeddings_and_output_weights=architecture.facts.tied,
            position_embedding_type="none",
        )
        self.architecture = architecture
        self._dtype = dtype
        frequencies = inverse_frequencies(architecture.rope, architecture.facts.head_dim)
        self._inverse_frequencies = frequencies.to(device)
        mark_shards(self, architecture)
        self.to(device)

    def logprobs(
        self,
        token_ids_N: torch.Tensor,
        groups: Sequence[GroupLengths],
        sources_M: torch.Tensor,
        targets_M: torch.Tensor,
        temperature: float,
    ) -> torch.Tensor:
        """Log-probabilities, float32 [M], of `targets_M` after the tokens at `sources_M`.

        `token_ids_N`: `groups` one after the other, each its prompt and then its completions.
        """
        key_heads = self.architecture.facts.num_kv_heads // self.config.tensor_model_parallel_size
        layout = build_layout(groups, self._inverse_frequencies, self._dtype, key_heads)
        hidden = self.embedding(input_ids=token_ids_N[None], position_ids=None)
        hidden = self.decoder(hidden_states=hidden, attention_mask=None, packed_seq_params=layout)
        hidden = hidden.squeeze(1).index_select(0, sources_M)
        hidden = tensor_parallel.copy_to_tensor_model_parallel_region(hidden)
        weight, first_entry = self._output_weight()
        return vocab_parallel_logprobs(
            hidden, weight, targets_M, first_entry, temperature, tensor_group()
        )

    def _output_weight(self) -> tuple[torch.Tensor, int]:
        """This rank's rows without the padding, and the vocabulary entry of the first."""
        weight: Any = (
            self.shared_embedding_or_output_weight()
            if self.architecture.facts.tied
            else self.output_layer.weight
        )
        first = parallel_state.get_tensor_model_parallel_rank() * weight.shape[0]
        real = min(weight.shape[0], self.architecture.facts.vocab_size - first)
        return (weight if real == weight.shape[0] else weight[:real]), first


def tensor_group() -> dist.ProcessGroup | None:
    """None where there is nobody to share with."""
    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        return None
    return cast(dist.ProcessGroup, parallel_state.get_tensor_model_parallel_group())


def _transformer_config(architecture: Architecture, dtype: torch.dtype) -> TransformerConfig:
    return TransformerConfig(
        num_layers=architecture.facts.num_layers,
        hidden_size=architecture.facts.hidden_size,
        ffn_hidden_size=architecture.facts.intermediate_size,
        num_attention_heads=architecture.facts.num_heads,
        num_query_groups=architecture.facts.num_kv_heads,
        kv_channels=architecture.facts.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.norm_epsilon,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=architecture.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=True,
        # The weights are loaded right after.
        perform_initialization=False,
        # The loss is a sum with its denominator inside, so gradients are summed over ranks.
        calculate_per_token_loss=True,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )


def _block_spec(num_layers: int) -> TransformerBlockSubmodules:
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    parts: Any = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    parts.self_attention.submodules.core_attention = PackedAttention
    norm: Any = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=norm)
