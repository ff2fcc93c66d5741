"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) over packed tokens.

A token's queries come out of one small vector, the keys and values of all heads out of another:

    x ── linear_q_down ── norm ── linear_q_up ──▶ of each head [turned + plain] queries
    x ── linear_kv_down ┬ norm ── linear_kv_up ─▶ of each head [plain] keys and [values]
                        └ turned ────────────────▶ [turned] keys, the same of all heads

megatron-core has the matrices and norms. Its own forward pass counts positions from the start of the pack, so what
is between them is ours. The channels that turn come first here, in two halves, as `attention.rotate` has
them: scores are sums over channels, in whatever order.

Axes: N packed tokens, n of this rank where sequence parallelism splits them, R tensor-parallel ranks.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from megatron.core import tensor_parallel
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.multi_latent_attention import MLASelfAttention

if not isinstance(multi_latent_attention.TELinear, type):
    # Where TransformerEngine is not installed, megatron-core 0.16 takes a stand-in of it for a class.
    multi_latent_attention.HAVE_TE = False


class LatentAttention(MLASelfAttention):
    def get_query_key_value_tensors(
        self, hidden_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Any, Any]:
        """[n, 1, C] -> queries and keys [N, 1, H, turned + plain], values [N, 1, H, values]; the last two are
        for ways to attend that we do not take."""
        config, norm = self.config, cast(torch.nn.Module, self.kv_layernorm)
        turned, plain = config.qk_pos_emb_head_dim, config.qk_head_dim
        small = _whole(self.linear_kv_down_proj(hidden_states)[0])
        small, key_turned = small.split([config.kv_lora_rank, turned], dim=-1)
        both, _ = self.linear_kv_up_proj(norm(self._own(small)))
        key, value = _heads(both, self).split([plain, config.v_head_dim], dim=-1)
        query_plain, query_turned = _heads(self._queries(hidden_states), self).split(
            [plain, turned], dim=-1
        )
        # Each rank's heads give a part of its gradient.
        key_turned = tensor_parallel.copy_to_tensor_model_parallel_region(key_turned)
        key_turned = _halves(key_turned).unsqueeze(2).expand(-1, -1, key.shape[2], -1)
        query = torch.cat([_halves(query_turned), query_plain], dim=-1)
        return query, torch.cat([key_turned, key], dim=-1), value, None, None

    def _queries(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if self.config.q_lora_rank is None:
            queries: torch.Tensor = self.linear_q_proj(hidden_states)[0]
            return queries
        small = _whole(self.linear_q_down_proj(hidden_states)[0])
        return self.linear_q_up_proj(self.q_layernorm(self._own(small)))[0]  # type: ignore[no-any-return]

    def _own(self, x: torch.Tensor) -> torch.Tensor:
        """The tokens that this rank's next matrix takes."""
        if self.config.sequence_parallel:
            return tensor_parallel.scatter_to_sequence_parallel_region(x)
        return x


def _whole(x: torch.Tensor) -> torch.Tensor:
    """[N, 1, channels / R] -> [N, 1, channels]."""
    return tensor_parallel.gather_from_tensor_model_parallel_region(x)


def _heads(x: torch.Tensor, attention: Any) -> torch.Tensor:
    return x.unflatten(-1, (attention.num_attention_heads_per_partition, -1))


def _halves(x: torch.Tensor) -> torch.Tensor:
    """Pairs that stand next to each other -> the first of each, then the second of each."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
