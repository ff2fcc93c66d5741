"""MindSpeed-RL's keys, and those that MindSpeed-MM's guides add. Their meaning and defaults:
mindspeed_rl/config_cls of Ascend/MindSpeed-RL, April 2026, and its configs/."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands.importing import shared
from commands.importing.conversion import SourceSystem
from commands.importing.rows import (
    NOT_SET,
    KeyOutcome,
    KeyRow,
    Theirs,
    choice,
    ignored,
    is_on,
    noted,
    only,
    own,
    parts,
    refused,
    same,
    switch,
)
from trimaran.choices import SINKS

TRAINING, ACTOR = "megatron_training", "actor_config"
RL, GENERATE = "rl_config", "generate_config"
SAMPLING = f"{GENERATE}.sampling_config"
VERIFIERS = (
    "acc",
    "format",
    "step",
    "strict_format",
    "base_acc",
    "math_17k_acc",
    "acc_for_ppo",
    "acc_for_dapo",
    "math_verify_reward",
    "retool_reward",
)
"""Their verifiers: rules of ours have these names."""
MOVES = (
    "there the rate moves after each update, begins with that of step 0, and with epochs above 1 moves so many"
    " times as fast; here it moves once a step"
)
MEANS = (
    "there an update's loss is the mean of its micro-batches' means; here all of its tokens, or completions, count"
    " alike"
)
SUFFIXES = (".parquet", ".jsonl")
STAGES = "give trainer.pipeline_layers in the run, a number of layers for each stage"
IN_TRAINER = "the vision tower is a part of the trainer's model"
TOWER = {
    "vision_encoder": ("*visual.patch_embed.*", "*visual.blocks.*"),
    "vision_projector": ("*visual.merger.*",),
}
"""Parts of a vision tower -> our names of their parameters."""


def _data(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None or Path(str(value)).suffix not in SUFFIXES:
        return KeyOutcome(
            "refused",
            "theirs is the prefix of a Megatron data set: prepare the file that its `input` names with"
            " `trimaran data prepare` (`trimaran import mindspeed-rl` prints the words for its file of"
            f" configs/datasets), and give {TRAINING}.data_path=FILE.parquet",
        )
    return shared.data_file("data.train", f"{TRAINING}.data_path")(value, theirs)


def _is_dapo(theirs: Theirs) -> bool:
    return theirs[f"{TRAINING}.stage"] == "ray_dapo"


def _trained(theirs: Theirs) -> Any:
    """Prompts that a step trains on: with filtering fewer than global_batch_size, which it draws."""
    if _is_dapo(theirs) and theirs.is_on(f"{RL}.filter_groups_enable"):
        return theirs[f"{RL}.filter_groups_train_batch_size"]
    return theirs[f"{TRAINING}.global_batch_size"]


def _groups(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None:
        return KeyOutcome("refused", f"give {TRAINING}.global_batch_size=N")
    return KeyOutcome("mapped", "", {"run.groups_per_step": int(_trained(theirs))})


def _steps(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None:
        return KeyOutcome("refused", f"a run counts steps: give {TRAINING}.train_iters=N")
    return KeyOutcome("mapped", "", {"run.steps": int(value)})


def _updates(value: Any, theirs: Theirs) -> KeyOutcome:
    batch = _trained(theirs)
    return shared.updates_of(int(batch or 0), int(value), f"{RL}.mini_batch_size")


def _micro_batch(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs.is_on(f"{RL}.use_dynamic_bsz"):
        tokens = (
            theirs[f"{RL}.update_max_packing_token_size"] or theirs[f"{RL}.max_packing_token_size"]
        )
        return KeyOutcome("mapped", "", {"trainer.micro_batch_tokens": int(tokens)})
    if value is None:
        return KeyOutcome("refused", f"give {ACTOR}.micro_batch_size=N")
    longest = int(theirs[f"{RL}.max_prompt_length"]) + int(theirs[f"{SAMPLING}.max_tokens"])
    return KeyOutcome("mapped", "", {"trainer.micro_batch_tokens": int(value) * longest})


def _kl(value: Any, theirs: Theirs) -> KeyOutcome:
    if _is_dapo(theirs):
        return shared.NO_KL
    adaptive = None
    if theirs[f"{RL}.kl_ctrl_type"] == "adaptive":
        target, horizon = theirs[f"{RL}.kl_target"], theirs[f"{RL}.kl_horizon"]
        adaptive = {"target": float(target), "horizon": int(horizon)}
    return shared.kl_in("loss", value, theirs[f"{RL}.kl_penalty"], adaptive)


def _loss(value: Any, theirs: Theirs) -> KeyOutcome:
    low = high = float(value)
    has_two = theirs.is_on(f"{RL}.clip_higher_enable")
    if has_two and _is_dapo(theirs):
        low, high = (float(theirs[f"{RL}.clip_ratio_{end}"]) for end in ("low", "high"))
    settings = {"algorithm.loss": {"type": "ppo_clip", "clip_low": low, "clip_high": high}}
    if has_two and not _is_dapo(theirs):
        text = (
            "clip_higher_enable has an effect with ray_dapo alone there: clip_ratio is both bounds"
        )
        return KeyOutcome("noted", text, settings)
    return KeyOutcome("mapped", "", settings)


def _aggregation(value: Any, theirs: Theirs) -> KeyOutcome:
    is_by_token = is_on(value) or not _is_dapo(theirs)
    ours = "token_mean" if is_by_token else "sequence_mean"
    return KeyOutcome("noted", MEANS, {"algorithm.aggregation": ours})


def _images(value: Any, theirs: Theirs) -> KeyOutcome:
    """Column and bounds are no keys of theirs, but stand in their program (mindspeed_rl/datasets)."""
    if not is_on(value):
        return KeyOutcome("ignored", "rows have no images")
    pixels = {"data.min_pixels": 512 * 512, "data.max_pixels": 2048 * 2048}
    return KeyOutcome("mapped", "", {"data.image_key": "images", **pixels})


def _reward(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs.is_on(f"{RL}.is_multimodal"):
        text = "with is_multimodal their program takes 0.9 x right + 0.1 x format instead, the rule geo3k"
        return KeyOutcome("noted", text, {"reward.rules": {"geo3k": 1.0}})
    names, weights = list(value), list(theirs[f"{RL}.verifier_weight"])
    if unknown := [name for name in names if name not in VERIFIERS]:
        return KeyOutcome(
            "refused", f"verifiers are {', '.join(VERIFIERS)} (given: {', '.join(unknown)})"
        )
    if len(names) != len(weights):
        return KeyOutcome(
            "refused", f"{len(names)} verifiers have {len(weights)} weights; give one each"
        )
    rules: dict[str, Any] = dict(zip(names, map(float, weights), strict=True))
    if theirs.is_on(f"{RL}.overlong_buffer_enable"):
        most, buffer = int(theirs[f"{RL}.rollout_max_tokens"]), int(theirs[f"{RL}.overlong_buffer"])
        rules["overlong"] = {
            "weight": float(theirs[f"{RL}.overlong_buffer_penalty_factor"]),
            "options": {"max_tokens": most, "buffer": buffer},
        }
    return KeyOutcome("mapped", "", {"reward.rules": rules})


def _filtering(value: Any, theirs: Theirs) -> KeyOutcome:
    if not is_on(value):
        return KeyOutcome("ignored", "every group trains")
    if not _is_dapo(theirs):
        text = "every group trains, as there: groups are filtered with ray_dapo alone"
        return KeyOutcome("noted", text)
    batches, metric = (
        int(theirs[f"{RL}.filter_groups_max_batches"]),
        theirs[f"{RL}.filter_groups_metric"],
    )
    has_verifiers = not theirs.is_on(f"{RL}.is_multimodal")
    is_term = has_verifiers and metric in theirs[f"{RL}.verifier_function"]
    return shared.dynamic_sampling(
        tries=max(0, batches),
        share=int(theirs[f"{TRAINING}.global_batch_size"] or 0) / int(_trained(theirs)),
        text="groups in which the metric is equal are replaced one by one; run.groups_per_step is"
        " filter_groups_train_batch_size, and global_batch_size says how many may be replaced",
        **({"term": metric} if is_term else {}),
    )


def _layout(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None:
        return KeyOutcome("refused", f"give {RL}.actor_resource.num_npus=N")

    def size(name: str) -> int:
        return int(theirs[f"{TRAINING}.{name}"] or 1)

    tensor, expert = size("tensor_model_parallel_size"), size("expert_model_parallel_size")
    # With moe_tp_extend_ep the tensor-parallel ranks take whole experts too; without it they split each.
    extends = theirs.is_on(f"{TRAINING}.moe_tp_extend_ep")
    slices = tensor if expert > 1 and not extends else 1
    shape = shared.Shape(
        devices=int(value),
        rollout_tensor=int(theirs[f"{GENERATE}.infer_tensor_parallel_size"]),
        tensor=tensor,
        pipeline=size("pipeline_model_parallel_size"),
        context=size("context_parallel_size"),
        expert=expert * tensor if expert > 1 and extends else expert,
        expert_tensor=slices,
    )
    more: dict[str, Any] = {}
    if slices > 1:
        more["expert_tensor_parallel"] = slices
    if tensor > 1 and theirs.is_on(f"{TRAINING}.sequence_parallel"):
        more["sequence_parallel"] = True
    distributes = theirs.is_on(f"{TRAINING}.use_distributed_optimizer")
    return shape.outcome(theirs.in_turns, distributes, **more)


def _load(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None or theirs.is_on(f"{TRAINING}.finetune"):
        return KeyOutcome(
            "ignored", "weights are read from model.path as they are: nothing is converted"
        )
    return KeyOutcome(
        "refused",
        "with finetune: false a run of theirs goes on, and their checkpoints are not read: convert one to"
        " a Hugging Face folder, give it as tokenizer_name_or_path, and set finetune=true. A run of ours goes on by `trimaran"
        " train --resume RUN`",
    )


def _freeze(value: Any, theirs: Theirs) -> KeyOutcome:
    """MindSpeed-MM's description of a model says which parts of a vision tower stay as they are."""
    if not theirs.is_on(f"{RL}.is_multimodal"):
        return KeyOutcome("ignored", shared.FOLDER)
    path = Path(str(value)).expanduser()
    if value is None or not path.is_file():
        text = (
            f"{value or 'the description of the model'} is not here: vision_encoder and vision_projector are frozen, as"
            " in the published ones; leave trainer.freeze out of the run, where they are to train"
        )
        return KeyOutcome("noted", text, {"trainer.freeze": ["*visual.*"]})
    described = json.loads(path.read_text(encoding="utf-8")).get("image_encoder", {})
    frozen = [
        name
        for name in TOWER
        if is_on(described.get(name, {}).get("freeze"), f"image_encoder.{name}.freeze")
    ]
    if not frozen:
        return KeyOutcome("ignored", "the vision tower trains")
    patterns = ["*visual.*"] if len(frozen) == len(TOWER) else list(TOWER[frozen[0]])
    return KeyOutcome("mapped", "", {"trainer.freeze": patterns})


def _reference(value: Any, theirs: Theirs) -> KeyOutcome:
    """Their checkpoints are not read, but two of them are not one model."""
    first = theirs[f"{TRAINING}.load"]
    if value is None or first in (None, value):
        return KeyOutcome("ignored", "the reference is always model.path, also after a resume")
    text = (
        f"there a run begins with {first} and the reference is {value}: here both are model.path. To begin with"
        " other weights set trainer.load in the run, to a checkpoint of them (`trimaran convert MODEL"
        " CHECKPOINT` makes one)"
    )
    return KeyOutcome("noted", text)


def _split(value: Any, theirs: Theirs) -> KeyOutcome:
    """The shares of rows for training, validation and tests."""
    shares = [float(word) for word in str(value or "").strip("[]").split(",") if word.strip()]
    if not any(shares[1:]):
        return KeyOutcome("ignored", "data.validation is a file of its own")
    return KeyOutcome(
        "refused",
        "all rows of data.train train here: give 100,0,0, and keep rows back with `trimaran data prepare"
        " --hold-out N`",
    )


def _partial(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None or int(value) == 1:
        return KeyOutcome("ignored", "an answer is made with one version of the weights")
    text = (
        "there an answer may be made over so many steps; here in one, but with run.max_lag above 0, which says"
        " how many steps old the weights of a token may be"
    )
    return KeyOutcome("noted", text)


def _checkpoints(value: Any, theirs: Theirs) -> KeyOutcome:
    """All of them, as there."""
    number = shared.kept(
        None, theirs[f"{TRAINING}.train_iters"], theirs[f"{TRAINING}.save_interval"]
    )
    if value is None:
        return number
    return KeyOutcome("mapped", "", {"run.checkpoints": shared.absolute(value), **number.settings})


def _warmup(value: Any, theirs: Theirs) -> KeyOutcome:
    steps = int(float(value or 0) * int(theirs[f"{TRAINING}.train_iters"] or 0))
    settings = {"trainer.warmup_steps": steps}
    return KeyOutcome("noted", MOVES, settings) if steps else KeyOutcome("mapped", "", settings)


def _schedule(value: Any, theirs: Theirs) -> KeyOutcome:
    made = shared.schedule("constant", "linear", "cosine")(value, theirs)
    return replace(made, text=MOVES) if made.fate == "noted" else made


def _recompute(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None:
        return NOT_SET
    if value == "selective":
        return KeyOutcome("mapped", "", {"trainer.recompute": value})
    layers = theirs[f"{TRAINING}.recompute_num_layers"]
    text = f"every layer, not {layers} of each stage" if layers else "every layer"
    return KeyOutcome("noted", text, {"trainer.recompute": True})


def _lora(value: Any, theirs: Theirs) -> KeyOutcome:
    if not value:
        return KeyOutcome("ignored", "no adapters")
    return shared.lora(theirs[f"{TRAINING}.lora_r"], theirs[f"{TRAINING}.lora_alpha"], value)


def _context(value: Any, theirs: Theirs) -> KeyOutcome:
    if int(theirs[f"{TRAINING}.context_parallel_size"] or 1) == 1 or value == "ulysses_cp_algo":
        return KeyOutcome("ignored", "ranks share the heads, as with ulysses_cp_algo")
    text = "ranks share the heads here, as with ulysses_cp_algo: their number must divide the heads"
    return KeyOutcome("noted", text)


def _layers(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None or int(theirs[f"{TRAINING}.pipeline_model_parallel_size"] or 1) == 1:
        return KeyOutcome("ignored", "there is one stage")
    listed = str(value).split(",") if isinstance(value, str | int) else value
    return KeyOutcome("mapped", "", {"trainer.pipeline_layers": list(map(int, listed))})


def _sinks(value: Any, theirs: Theirs) -> KeyOutcome:
    """As there wandb goes before TensorBoard, which is always written here."""
    named = [name for name in ("wandb", "swanlab") if theirs.is_on(f"{RL}.use_{name}")]
    if not is_on(value):
        return KeyOutcome("ignored", "off")
    known = [name for name in named if name in SINKS.names()]
    if known != named:
        text = "swanlab: not written here, unless an installed package adds that sink"
        return KeyOutcome("noted", text, {"metrics.sinks": known} if known else {})
    return KeyOutcome("mapped", "", {"metrics.sinks": named})


TRAINER: tuple[KeyRow, ...] = (
    own("model", None, _freeze),
    *ignored("", "model.*", shared.FOLDER),
    only(
        f"{TRAINING}.stage",
        ("ray_grpo", "ray_dapo"),
        "give ray_grpo or ray_dapo: no critic, no pairs",
    ),
    own(f"{TRAINING}.tokenizer_name_or_path", None, shared.model_folder),
    own(f"{TRAINING}.data_path", None, _data),
    own(f"{TRAINING}.global_batch_size", None, _groups),
    own(f"{TRAINING}.train_iters", None, _steps),
    same(f"{TRAINING}.save_interval", "run.checkpoint_every", None, int),
    same(f"{TRAINING}.seed", "run.seed", 1234, int),
    same(f"{TRAINING}.npu_deterministic", "run.deterministic", None, is_on),
    same(f"{TRAINING}.use_deter_comp", "run.deterministic", None, is_on),
    same(f"{TRAINING}.no_shuffle", "data.shuffle", False, lambda value: not is_on(value)),
    own(f"{TRAINING}.micro_batch_size", None, _micro_batch),
    *parts(
        TRAINING,
        {
            "tensor_model_parallel_size": 1,
            "pipeline_model_parallel_size": 1,
            "context_parallel_size": 1,
            "expert_model_parallel_size": 1,
            "moe_tp_extend_ep": False,
            "sequence_parallel": False,
            "use_distributed_optimizer": False,
            "recompute_num_layers": None,
            "finetune": False,
            "lora_r": 8,
            "lora_alpha": 16,
        },
    ),
    own(f"{TRAINING}.context_parallel_algo", "ulysses_cp_algo", _context),
    own(f"{TRAINING}.num_layer_list", None, _layers),
    noted(f"{TRAINING}.noop_layers", STAGES),
    noted(
        f"{TRAINING}.num_layers_per_virtual_pipeline_stage",
        "give trainer.virtual_stages in the run: layers of a stage / this",
    ),
    own(f"{TRAINING}.recompute_granularity", None, _recompute),
    switch(f"{TRAINING}.swap_optimizer", "trainer.offload", ["optimizer"]),
    same(f"{TRAINING}.lr", "trainer.learning_rate", 1e-6, float),
    own(f"{TRAINING}.lr_decay_style", "linear", _schedule),
    same(f"{TRAINING}.min_lr", "trainer.min_learning_rate", 0.0, float),
    own(f"{TRAINING}.lr_warmup_fraction", None, _warmup),
    same(f"{TRAINING}.weight_decay", "trainer.weight_decay", 0.01, float),
    same(f"{TRAINING}.clip_grad", "trainer.clip_grad", 1.0, float),
    same(f"{TRAINING}.adam_beta1", "trainer.beta1", 0.9, float),
    same(f"{TRAINING}.adam_beta2", "trainer.beta2", 0.999, float),
    same(f"{TRAINING}.adam_eps", "trainer.epsilon", None, float),
    own(f"{TRAINING}.load", None, _load),
    own(f"{TRAINING}.save", None, _checkpoints),
    own(f"{TRAINING}.lora_target_modules", None, _lora),
    only(f"{TRAINING}.bf16", (True,), "model.dtype is bfloat16: give true"),
    same(f"{TRAINING}.moe_aux_loss_coeff", "trainer.router.load_balancing", None, float),
    same(f"{TRAINING}.moe_z_loss_coeff", "trainer.router.z_loss", None, float),
    own(f"{TRAINING}.split", None, _split),
    only(f"{TRAINING}.attention_dropout", (0.0,), "there is no dropout: give 0"),
    only(f"{TRAINING}.hidden_dropout", (0.0,), "there is no dropout: give 0"),
    *ignored(
        TRAINING,
        "attention_mask_type attention_softmax_in_fp32 distributed_backend enable_high_availability"
        " gemm_gradient_accumulation_fusion init_method_std initial_loss_scale lora_fusion"
        " moe_alltoall_overlap_comm moe_grouped_gemm moe_permutation_async_comm"
        " no_gradient_accumulation_fusion no_masked_softmax_fusion overlap_grad_reduce overlap_param_gather"
        " recompute_activation_function recompute_method reuse_fp32_param shape_order swap_attention"
        " use_flash_attn use_fused_rmsnorm use_fused_rotary_pos_emb use_fused_swiglu use_mcore_models",
        shared.DEVICE,
    ),
    *ignored(
        TRAINING,
        "model norm_epsilon normalization num_layers position_embedding_type qk_layernorm swiglu tokenizer_type"
        " tokenizer_not_use_fast use_rotary_position_embeddings",
        shared.FOLDER,
    ),
    *ignored(
        TRAINING, "no_pad_to_seq_lengths reset_attention_mask variable_seq_lengths", shared.PADDING
    ),
    *ignored(
        TRAINING,
        "seq_length dataset_additional_keys full_shuffle_instruction_dataset num_workers",
        shared.ROWS_OF_FILE,
    ),
    *ignored(
        TRAINING,
        "no_load_optim no_load_rng no_save_optim no_save_rng load_checkpoint_loosely lora_ckpt_filter"
        " no_shared_storage",
        "a checkpoint holds all that a resume needs, and lies in run.checkpoints",
    ),
    *ignored(TRAINING, "log_interval eval_interval eval_iters dpo_loss_type", shared.REPORTS),
)

ALGORITHM: tuple[KeyRow, ...] = (
    own(f"{RL}.actor_resource.num_npus", None, _layout),
    refused(f"{RL}.reward_resource.*", shared.NO_MODEL),
    same(f"{RL}.max_prompt_length", "rollout.max_prompt_tokens", 512, int),
    same(f"{RL}.n_samples_per_prompt", "rollout.group_size", 1, int),
    own(f"{RL}.mini_batch_size", 1, _updates),
    same(f"{RL}.epochs", "algorithm.epochs", 1, int),
    same(f"{RL}.shuffle_mini_batch", "algorithm.shuffle", False),
    choice(
        f"{RL}.adv_estimator",
        "algorithm.advantage",
        "group_norm",
        {"group_norm": "group"},
        "gae needs a critic, and there is none here: ",
    ),
    own(f"{RL}.clip_ratio", 0.2, _loss),
    own(f"{RL}.token_level_loss", True, _aggregation),
    same(f"{RL}.entropy_coeff", "algorithm.entropy.coefficient", 0.0, float),
    own(f"{RL}.init_kl_coef", 0.01, _kl),
    only(f"{RL}.use_kl_in_reward", (False,), "of ray_ppo alone: give false"),
    only(f"{RL}.gamma", (1.0,), "there is no discount here: give 1"),
    own(f"{RL}.verifier_function", ["base_acc"], _reward),
    same(f"{RL}.verifier_parallel", "reward.workers", None, int),
    same(
        f"{RL}.verifier_timeout",
        "reward.timeout",
        None,
        float,
        "their program takes 1 s, whatever it says",
    ),
    only(f"{RL}.rule_reward", (True,), shared.NO_MODEL),
    own(f"{RL}.filter_groups_enable", False, _filtering),
    own(f"{RL}.is_multimodal", False, _images),
    *parts(
        RL,
        {
            "clip_higher_enable": False,
            "clip_ratio_low": 0.1,
            "clip_ratio_high": 0.1,
            "kl_penalty": "low_var_kl",
            "kl_ctrl_type": "fixed",
            "kl_horizon": 1000,
            "kl_target": 100.0,
            "verifier_weight": [1.0],
            "overlong_buffer_enable": False,
            "overlong_buffer": 0,
            "overlong_buffer_penalty_factor": 1.0,
            "rollout_max_tokens": 2048,
            "filter_groups_metric": "acc",
            "filter_groups_max_batches": 1,
            "filter_groups_train_batch_size": 1,
            "use_dynamic_bsz": False,
            "max_packing_token_size": 4096,
            "update_max_packing_token_size": None,
        },
    ),
    own(f"{RL}.integrated_mode_config.ref_model_load_path", None, _reference),
    only(
        f"{RL}.multi_turn_enable",
        (False,),
        "leave it out, and set environment in the run (docs/agents.md)",
    ),
    own(f"{RL}.partial_rollout_max_split", 1, _partial),
    own(f"{RL}.use_wandb", False, _sinks),
    own(f"{RL}.use_swanlab", False, _sinks),
    same(f"{RL}.wandb_project", "metrics.project"),
    own(f"{RL}.wandb_exp_name", None, shared.run_name),
    same(f"{RL}.swanlab_project", "metrics.project"),
    own(f"{RL}.swanlab_exp_name", None, shared.run_name),
    *ignored(
        RL,
        "actor_resource.* reference_resource.* integrated_mode_config.* use_integrated_worker share_backbone"
        " tp_split_expert",
        shared.TURNS,
    ),
    *ignored(
        RL,
        "vit_resource.* vit_forward_micro_batch_size actor_image_embeds_dispatch_size reuse_image_embeds"
        " colocate_actor_and_vit",
        IN_TRAINER,
    ),
    *ignored(RL, "lam advantage_whiten beta", "of gae or of dpo alone"),
    *ignored(
        RL,
        "critic_resource.* cliprange_value critic_update_dispatch_size critic_value_dispatch_size",
        shared.NO_CRITIC,
    ),
    *ignored(
        RL,
        "ref_max_packing_token_size actor_max_packing_token_size ref_forward_micro_batch_size"
        " actor_forward_micro_batch_size dynamic_max_batch_size ref_dynamic_max_batch_size"
        " actor_dynamic_max_batch_size update_dynamic_max_batch_size use_dp_batch_balance",
        shared.LIMIT,
    ),
    *ignored(RL, "use_remove_padding", shared.PADDING),
    *ignored(
        RL,
        "actor_rollout_dispatch_size actor_logprob_dispatch_size actor_update_dispatch_size ref_dispatch_size"
        " reward_dispatch_size dynamic_sampling_dispatch_size adv_dispatch_size kl_dispatch_size"
        " num_samples_per_step blocking async_engine data_strategy guarantee_order zmq_communication"
        " require_max_age_all_finished transfer_queue_data_shard_num transfer_queue_data_shard_port_base",
        shared.GROUPS,
    ),
    *ignored(
        RL,
        "tool_config_path max_tool_calls max_parallel_calls max_total_response_length"
        " max_tool_response_length tool_response_truncate_side tool_parser_format",
        "answers have one turn here",
    ),
    *ignored(
        RL,
        "hccl_buffersize runtime_env_path num_cpus_for_local_task num_cpus_for_placement_group swanlab_mode",
        "variables are those of the shell that starts the run; Ray's are its own",
    ),
    *ignored(
        RL, "log_max_throughput use_tensorboard wandb_save_dir swanlab_save_dir", shared.REPORTS
    ),
)

GENERATION: tuple[KeyRow, ...] = (
    same(f"{GENERATE}.infer_tensor_parallel_size", "rollout.tensor_parallel", 8, int),
    only(f"{GENERATE}.infer_pipeline_parallel_size", (1,), "a replica has one stage: give 1"),
    same(f"{GENERATE}.max_num_seqs", "rollout.max_concurrency", 1, int),
    own(
        f"{GENERATE}.max_model_len",
        2048,
        shared.longest_sequence(f"{RL}.max_prompt_length", f"{SAMPLING}.max_tokens"),
    ),
    choice(f"{GENERATE}.dtype", "model.dtype", "bfloat16", {"bfloat16": "bfloat16"}),
    same(
        f"{GENERATE}.gpu_memory_utilization", "rollout.memory_fraction", 0.5, float, shared.MEMORY
    ),
    # Their default is false; it changes no answer, so without the key it is on.
    same(f"{GENERATE}.enable_prefix_caching", "rollout.prefix_cache", None, is_on),
    same(f"{GENERATE}.enforce_eager", "rollout.eager", True),
    only(
        f"{GENERATE}.torchair_graph", (False,), "rollout.eager chooses captured graphs: give false"
    ),
    own(f"{GENERATE}.limit_mm_image_per_prompt", 1, shared.limit_images),
    same(f"{SAMPLING}.max_tokens", "rollout.max_tokens", 128, int),
    same(f"{SAMPLING}.temperature", "rollout.temperature", 0.2, float),
    only(f"{SAMPLING}.top_p", (1,), f"{shared.WHOLE}1"),
    only(f"{SAMPLING}.top_k", (-1, 0), f"{shared.WHOLE}-1 (their default is 50)", default=50),
    only(f"{SAMPLING}.min_p", (0,), f"{shared.WHOLE}0"),
    *ignored(
        GENERATE,
        "offload_train_optimizer offload_train_grad offload_train_param",
        shared.TURNS,
    ),
    *ignored(
        GENERATE,
        "infer_expert_parallel_size enable_expert_parallel eplb_token_collects eplb_token_save_path"
        " expert_map_path",
        "experts of a replica are split by rollout.tensor_parallel, and stay where they are",
    ),
    *ignored(
        GENERATE,
        "max_num_batched_tokens num_scheduler_steps ascend_scheduler_config_enabled limit_mm_video_per_prompt"
        " trust_remote_code sampling_config.logprobs sampling_config.detokenize sampling_config.seed",
        shared.ENGINE,
    ),
    own("ref_config.load", None, _reference),
    *ignored("", "ref_config.*", "the reference has the trainer's layout"),
    *ignored("", "vit_config.*", IN_TRAINER),
    *ignored("", "reward_config.*", "rewards come from rules"),
    *ignored("", "critic_config.*", shared.NO_CRITIC),
    *ignored("", "profiler_config.* msprobe_config.*", shared.REPORTS),
)

MINDSPEED_RL = SourceSystem(
    "mindspeed-rl",
    "MindSpeed-RL",
    ("megatron_training", "rl_config"),
    (*TRAINER, *ALGORITHM, *GENERATION),
    # Its loss does not look at the engine's log-probabilities.
    {"algorithm.correction.weights": "none"},
    {ACTOR: TRAINING},
)
