"""megatron-core's configuration of a model: what the folder's config.json and the run say, in its words."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer import MLATransformerConfig, TransformerConfig
from megatron.core.transformer.moe import moe_utils

from services.trainer.megatron.architecture import Architecture
from trimaran.config import RunConfig
from trimaran.config.parallel import ParallelLayout
from trimaran.model.folder import ModelFacts

RECOMPUTE = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
RECOMPUTE_SELECTIVE = {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}


def transformer_config(
    architecture: Architecture, run: RunConfig, dtype: torch.dtype
) -> TransformerConfig:
    facts, layout = architecture.facts, run.trainer.layout
    kind = MLATransformerConfig if facts.latent else TransformerConfig
    return kind(
        num_layers=facts.num_layers,
        hidden_size=facts.hidden_size,
        ffn_hidden_size=facts.intermediate_size,
        num_attention_heads=facts.num_heads,
        num_query_groups=facts.num_kv_heads,
        kv_channels=facts.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.norm_epsilon,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        pipeline_model_parallel_layout=_stages(facts, layout, run.trainer.virtual_stages),
        context_parallel_size=layout.context,
        sequence_parallel=run.trainer.sequence_parallel,
        **(_interleaved(run.trainer.virtual_stages) if run.trainer.virtual_stages > 1 else {}),
        # Micro-batches have as many tokens as they have.
        variable_seq_lengths=layout.pipeline > 1,
        # The only one that takes them; also looked at where there are no experts.
        moe_token_dispatcher_type="alltoall",
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=True,
        # The weights are loaded right after.
        perform_initialization=False,
        # The loss is a sum with its denominator inside, so gradients are summed over ranks.
        calculate_per_token_loss=True,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        # That the MLP takes the spec's activation, which is our own (lean.py).
        use_te_activation_func=True,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        # Its embedding's gradient is summed in a fixed order.
        deterministic_mode=run.run.deterministic,
        persist_layer_norm=False,
        **_recompute(run.trainer.recompute),
        **_attention_config(architecture),
        **_expert_config(facts, layout),
        **{**_router_config(architecture), **_router_losses(run)},
    )


def _stages(
    facts: ModelFacts, layout: ParallelLayout, virtual_stages: int
) -> list[list[str]] | None:
    """What each holds, in megatron-core's words."""
    if layout.pipeline == 1:
        return None
    stages = [
        ["decoder"] * len(layers) for layers in layout.stages(facts.num_layers, virtual_stages)
    ]
    stages[0].insert(0, "embedding")
    stages[-1].append("loss")
    return stages


def _recompute(choice: bool | str) -> dict[str, Any]:
    if choice == "selective":
        return RECOMPUTE_SELECTIVE
    return RECOMPUTE if choice else {}


def _interleaved(virtual_stages: int) -> dict[str, Any]:
    """Both directions at a time would be mixed up between two ranks, which are each other's next and
    previous one; megatron-core keeps them apart where it overlaps them."""
    return {
        "virtual_pipeline_model_parallel_size": virtual_stages,
        "overlap_p2p_comm": True,
        "batch_p2p_comm": False,
    }


def _attention_config(architecture: Architecture) -> dict[str, Any]:
    """What the features of the family are in megatron-core's words."""
    facts, latent = architecture.facts, architecture.facts.latent
    if latent is None:
        # finalize_model_grads sums the norms' gradients over the heads of all tensor-parallel ranks by it.
        return {
            "add_qkv_bias": facts.has_biases,
            "qk_layernorm": facts.has_head_norms,
            "layernorm_zero_centered_gamma": facts.described.norms_around_one,
            "softmax_scale": architecture.softmax_scale,
            "window_size": (facts.window - 1, 0) if facts.window else None,
            "window_attn_skip_freq": [
                int(layer not in facts.full_layers) for layer in range(facts.num_layers)
            ],
        }
    return {
        "qk_layernorm": True,  # of the small vectors
        "q_lora_rank": latent.queries_rank or None,
        "kv_lora_rank": latent.keys_rank,
        "qk_head_dim": latent.plain,
        "qk_pos_emb_head_dim": latent.turned,
        "v_head_dim": latent.values,
        "rope_type": "rope",  # what turns them is ours (attention.py)
        # Of these two megatron-core makes the scale of the scores alone.
        "rotary_scaling_factor": architecture.rope.factor,
        "mscale_all_dim": architecture.rope.scores_mscale,
    }


def _expert_config(facts: ModelFacts, layout: ParallelLayout) -> dict[str, Any]:
    if not facts.num_experts:
        return {}
    _mend_router()
    return {
        "num_moe_experts": facts.num_experts,
        "moe_router_topk": facts.experts_per_token,
        "moe_ffn_hidden_size": facts.expert_size,
        "moe_shared_expert_intermediate_size": facts.shared_expert_size or None,
        "moe_layer_freq": [int(facts.has_experts(layer)) for layer in range(facts.num_layers)],
        "expert_model_parallel_size": layout.expert,
        "expert_tensor_parallel_size": layout.expert_tensor,
    }


def _router_config(architecture: Architecture) -> dict[str, Any]:
    """How a token's experts are chosen, and weighed."""
    experts, routing = architecture.facts.described.experts, architecture.routing
    if experts is None:
        return {}
    common = {
        "moe_shared_expert_gate": experts.shared_gate,
        "moe_router_load_balancing_type": "none",
    }
    if experts.scores == "softmax":
        return {**common, "moe_router_pre_softmax": not routing.normalized}
    return {
        **common,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        # The engine has the bias of the version, so it stays as the model was trained before.
        "moe_router_bias_update_rate": 0.0,
        "moe_router_dtype": "fp32",
        "moe_router_topk_scaling_factor": routing.scale,
        "moe_router_num_groups": routing.groups,
        "moe_router_group_topk": routing.chosen_groups,
    }


def _router_losses(run: RunConfig) -> dict[str, Any]:
    """megatron-core's own; `router.set_losses` says how much they weigh."""
    section, keywords = run.trainer.router, dict[str, Any]()
    if section.load_balancing:
        keywords["moe_router_load_balancing_type"] = "aux_loss"
        keywords["moe_aux_loss_coeff"] = section.load_balancing
    if section.z_loss:
        keywords["moe_z_loss_coeff"] = section.z_loss
    return keywords


def _mend_router() -> None:
    """megatron-core 0.16 looks for a function of TransformerEngine by a name that it does not define
    where that is not installed."""
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
