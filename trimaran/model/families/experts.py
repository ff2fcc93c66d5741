"""Keys of config.json that families with experts share."""

from collections.abc import Mapping
from typing import Any

KEYS = frozenset(
    {
        *("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"),
        *("norm_topk_prob", "router_aux_loss_coef", "output_router_logits"),
        *("shared_expert_intermediate_size",),
    }
)
"""`Family.known` of Qwen's. The auxiliary loss is not trained."""
EVERY_LAYER: Mapping[str, Any] = {"decoder_sparse_step": 1, "mlp_only_layers": []}
"""`Family.required` of Qwen's: each layer has experts."""
GROUPED_KEYS = frozenset(
    {
        *("n_routed_experts", "num_local_experts", "n_shared_experts", "num_experts_per_tok"),
        *("moe_intermediate_size", "first_k_dense_replace", "n_group", "topk_group"),
        *("routed_scaling_factor", "output_router_logits"),
        # The heads that predict further tokens are left out.
        *("num_nextn_predict_layers", "num_mtp_layers"),
        # Of the auxiliary loss, which is not trained, and of how other code spreads experts.
        *("aux_loss_alpha", "seq_aux", "ep_size"),
    }
)
"""`Family.known` of DeepSeek's and what is built like them."""
GROUPED: Mapping[str, Any] = {
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
}
"""`Family.required` of the same."""
