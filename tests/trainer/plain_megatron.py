"""A rank with megatron-core's own GPTModel, as Megatron-LM builds it: what reads the checkpoints that
`trimaran convert --to torch_dist` makes, and what writes those that it reads.

Of ours it has the shim for the CPU alone: no layer, no rule, no name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 200


@dataclass(frozen=True)
class Job:
    model: str
    """A Hugging Face folder, for its config.json."""
    store: str = ""
    """A file by which the ranks meet."""
    load: str = ""
    save: str = ""
    answers: str = ""
    """Where the logits of `token_ids` go."""
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    @property
    def num_ranks(self) -> int:
        return max(self.tensor, self.expert) * self.pipeline


def run_ranks(job: Job) -> None:
    """Raises where a rank fails; its output then stands in the test's."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", __name__, json.dumps(asdict(job))]
    ranks = [
        subprocess.Popen([*command, str(rank)], env=environment) for rank in range(job.num_ranks)
    ]
    try:
        codes = [rank.wait(TIMEOUT_SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0] * job.num_ranks


def token_ids(vocab_size: int) -> Any:
    """[2, 24]"""
    import torch

    return torch.randint(0, vocab_size, (2, 24), generator=torch.Generator().manual_seed(3))


def main(job: Job, rank: int) -> None:
    import torch
    import torch.distributed as dist
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.dist_checkpointing.strategies import torch as strategies  # noqa: F401
    from megatron.core.transformer.enums import AttnBackend

    from services.trainer.megatron.cpu import let_megatron_run_on_cpu

    let_megatron_run_on_cpu()  # also the modules that were just loaded

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{job.store}", rank=rank, world_size=job.num_ranks
    )
    parallel_state.initialize_model_parallel(
        job.tensor,
        job.pipeline,
        expert_model_parallel_size=job.expert,
        expert_tensor_parallel_size=1,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1 + rank)
    config = json.loads((Path(job.model) / "config.json").read_text())
    model = build(config, job)
    model.load_state_dict(dist_checkpointing.load(model.sharded_state_dict(), job.load))
    if rank == 0:
        Path(job.save).mkdir()
    dist.barrier()
    # As Megatron-LM saves the arguments of its command line.
    arguments = Namespace(
        make_vocab_size_divisible_by=128,
        tensor_model_parallel_size=job.tensor,
        attention_backend=AttnBackend.auto,
    )
    dist_checkpointing.save({"args": arguments, **model.sharded_state_dict()}, job.save)
    logits = forward(model, token_ids(config["vocab_size"]), config["hidden_size"])
    if logits is not None:
        torch.save(logits[..., : config["vocab_size"]], job.answers)
    dist.barrier()
    dist.destroy_process_group()


def build(config: dict[str, Any], job: Job) -> Any:
    import torch
    import torch.nn.functional as F
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
        get_gpt_layer_local_spec,
    )
    from megatron.core.transformer import (
        MLATransformerConfig,
        TransformerConfig,
        multi_latent_attention,
    )
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.moe import moe_utils

    kind = config["model_type"]
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next(filter(None, map(config.get, names)), None)
    extra: dict[str, Any] = {}
    if experts:
        moe_utils.te_general_gemm = None
        extra = {
            "num_moe_experts": experts,
            "moe_router_topk": config["num_experts_per_tok"],
            "moe_ffn_hidden_size": config["moe_intermediate_size"],
            "moe_shared_expert_intermediate_size": config.get("shared_expert_intermediate_size"),
            "moe_shared_expert_gate": "shared_expert_intermediate_size" in config,
            "moe_router_pre_softmax": not config["norm_topk_prob"],
            **(_grouped(config) if "n_group" in config else {}),
            "moe_router_load_balancing_type": "none",
            "moe_token_dispatcher_type": "alltoall",
            "expert_model_parallel_size": job.expert,
            "expert_tensor_parallel_size": 1,
        }
    latent = "kv_lora_rank" in config
    if latent:
        extra |= {
            "q_lora_rank": config["q_lora_rank"],
            "kv_lora_rank": config["kv_lora_rank"],
            "qk_head_dim": config["qk_nope_head_dim"],
            "qk_pos_emb_head_dim": config["qk_rope_head_dim"],
            "v_head_dim": config["v_head_dim"],
            "rope_type": "rope",
        }
        # Else it cannot be built without TransformerEngine.
        multi_latent_attention.HAVE_TE = False
    transformer = (MLATransformerConfig if latent else TransformerConfig)(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=config["num_attention_heads"],
        num_query_groups=config["num_key_value_heads"],
        kv_channels=config.get("head_dim"),
        normalization="RMSNorm",
        layernorm_epsilon=config["rms_norm_eps"],
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=kind.startswith("qwen2") or config.get("attention_bias", False),
        qk_layernorm=kind.startswith("qwen3") or config.get("use_qk_norm", latent),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=job.tensor,
        pipeline_model_parallel_size=job.pipeline,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        **extra,
    )
    spec: Any = get_gpt_layer_local_spec(
        num_experts=experts or None,
        normalization="RMSNorm",
        qk_layernorm=bool(transformer.qk_layernorm),
        multi_latent_attention=latent,
    )
    if "n_group" in config:
        spec = get_gpt_decoder_block_spec(transformer, False, normalization="RMSNorm")
    for layer in spec.layer_specs if latent else ():
        # It has no parameters, and megatron-core's own cannot be made with latent attention.
        layer.submodules.self_attention.submodules.core_attention = IdentityOp
    return GPTModel(
        config=transformer,
        transformer_layer_spec=spec,
        # Megatron-LM pads a vocabulary to a multiple of 128 for each tensor-parallel rank.
        vocab_size=-(-config["vocab_size"] // (128 * job.tensor)) * 128 * job.tensor,
        max_sequence_length=config["max_position_embeddings"],
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=config["tie_word_embeddings"],
        position_embedding_type="rope",
        rotary_base=int(config["rope_parameters"]["rope_theta"]),
        parallel_output=False,
    )


def _grouped(config: dict[str, Any]) -> dict[str, Any]:
    dense = config["first_k_dense_replace"]
    return {
        "moe_shared_expert_intermediate_size": config["n_shared_experts"]
        * config["moe_intermediate_size"],
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_dtype": "fp32",
        "moe_router_num_groups": config["n_group"],
        "moe_router_group_topk": config["topk_group"],
        "moe_router_topk_scaling_factor": config["routed_scaling_factor"],
        "moe_layer_freq": [0] * dense + [1] * (config["num_hidden_layers"] - dense),
    }


def forward(model: Any, ids: Any, hidden_size: int) -> Any:
    """Logits [2, 24, V] on the first rank of the last stage."""
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state

    length = ids.shape[1]
    positions = torch.arange(length).expand_as(ids)
    mask = torch.ones(length, length, dtype=torch.bool).triu(1)[None, None]
    with torch.no_grad():
        if not model.pre_process:
            hidden = torch.empty(length, len(ids), hidden_size)
            dist.recv(hidden, parallel_state.get_pipeline_model_parallel_prev_rank())
            model.set_input_tensor(hidden)
        answer = model.eval()(ids, positions, mask)
    if not model.post_process:
        dist.send(answer, parallel_state.get_pipeline_model_parallel_next_rank())
        return None
    is_first = parallel_state.get_tensor_model_parallel_rank() == 0
    return answer if is_first and parallel_state.get_expert_model_parallel_rank() == 0 else None


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])), int(sys.argv[2]))
