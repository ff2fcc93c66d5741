"""MindSpeed-RL's keys, of its configs/, and those that MindSpeed-MM's guides add. Their meaning and defaults:
mindspeed_rl/config_cls of Ascend/MindSpeed-RL, April 2026."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands.importing import shared
from commands.importing.conversion import SourceSystem
from commands.importing.layout import Shape
from commands.importing.rows import (
    NOT_SET,
    KeyOutcome,
    Theirs,
    becomes,
    choice,
    deny,
    ignored,
    is_on,
    noted,
    nothing,
    only,
    own,
    parts,
    same,
    switch,
    under,
)

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
FILTERED = (
    "groups in which the metric is equal are replaced one by one; run.groups_per_step is"
    " filter_groups_train_batch_size, and global_batch_size says how many may be replaced"
)
SUFFIXES = (".parquet", ".jsonl")
STAGES = "give trainer.pipeline_layers in the run, a number of layers for each stage"
IN_TRAINER = "the vision tower is a part of the trainer's model"
GRPO_ALONE = "of ray_dapo alone there: with ray_grpo it has no effect"
HEADS = "ranks share the heads here, as with ulysses_cp_algo: their number must divide the heads"
CHECKPOINTS = (
    "with finetune: false a run of theirs goes on, and their checkpoints are not read: convert one to a Hugging Face"
    " folder, give it as tokenizer_name_or_path, and set finetune=true. A run of ours goes on by `trimaran train"
    " --resume RUN`"
)
TOWER = {
    "vision_encoder": ("*visual.patch_embed.*", "*visual.blocks.*"),
    "vision_projector": ("*visual.merger.*",),
}
"""Parts of a vision tower -> our names of their parameters."""


def _data(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is not None and Path(str(value)).suffix in SUFFIXES:
        return shared.training_file(f"{TRAINING}.data_path")(value, theirs)
    return deny(
        "theirs is the prefix of a Megatron data set: prepare the file that its `input` names with `trimaran data"
        " prepare` (`trimaran import mindspeed-rl` prints the words for its file of configs/datasets), and give"
        f" {TRAINING}.data_path=FILE.parquet"
    )


def _is_dapo(theirs: Theirs) -> bool:
    return theirs[f"{TRAINING}.stage"] == "ray_dapo"


def _trained(theirs: Theirs) -> Any:
    """Prompts that a step trains on: with filtering fewer than global_batch_size, which it draws."""
    if _is_dapo(theirs) and theirs.is_on(f"{RL}.filter_groups_enable"):
        return theirs[f"{RL}.filter_groups_train_batch_size"]
    return theirs[f"{TRAINING}.global_batch_size"]


def _groups(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None:
        return deny(f"give {TRAINING}.global_batch_size=N")
    return becomes({"run.groups_per_step": int(_trained(theirs))})


def _steps(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None:
        return deny(f"a run counts steps: give {TRAINING}.train_iters=N")
    return becomes({"run.steps": int(value)})


def _updates(value: Any, theirs: Theirs) -> KeyOutcome:
    return shared.updates_of(int(_trained(theirs) or 0), int(value), f"{RL}.mini_batch_size")


def _micro_batch(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs.is_on(f"{RL}.use_dynamic_bsz"):
        names = ("update_max_packing_token_size", "max_packing_token_size")
        tokens = next(filter(None, (theirs[f"{RL}.{name}"] for name in names)))
        return becomes({"trainer.micro_batch_tokens": int(tokens)})
    if value is None:
        return deny(f"give {ACTOR}.micro_batch_size=N")
    longest = int(theirs[f"{RL}.max_prompt_length"]) + int(theirs[f"{SAMPLING}.max_tokens"])
    return becomes({"trainer.micro_batch_tokens": int(value) * longest})


def _kl(value: Any, theirs: Theirs) -> KeyOutcome:
    if _is_dapo(theirs):
        return shared.NO_KL
    return shared.kl_in("loss", value, theirs[f"{RL}.kl_penalty"])


def _loss(value: Any, theirs: Theirs) -> KeyOutcome:
    has_two = theirs.is_on(f"{RL}.clip_higher_enable")
    names = ("clip_ratio_low", "clip_ratio_high")
    if not has_two or not _is_dapo(theirs):
        names = ("clip_ratio", "clip_ratio")
    low, high = (float(theirs[f"{RL}.{name}"]) for name in names)
    settings = {"algorithm.loss": {"type": "ppo_clip", "clip_low": low, "clip_high": high}}
    return becomes(
        settings, f"clip_higher_enable is {GRPO_ALONE}" if has_two > _is_dapo(theirs) else ""
    )


def _aggregation(value: Any, theirs: Theirs) -> KeyOutcome:
    is_by_token = is_on(value) or not _is_dapo(theirs)
    ours = "token_mean" if is_by_token else "sequence_mean"
    return becomes({"algorithm.aggregation": ours}, MEANS)


def _images(value: Any, theirs: Theirs) -> KeyOutcome:
    """Column and bounds are no keys of theirs, but stand in their program (mindspeed_rl/datasets)."""
    if not is_on(value):
        return nothing("rows have no images")
    pixels = {"data.min_pixels": 512 * 512, "data.max_pixels": 2048 * 2048}
    return becomes({"data.image_key": "images", **pixels})


def _reward(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs.is_on(f"{RL}.is_multimodal"):
        text = "with is_multimodal their program takes 0.9 x right + 0.1 x format instead, the rule geo3k"
        return becomes({"reward.rules": {"geo3k": 1.0}}, text)
    names, weights = list(value), list(theirs[f"{RL}.verifier_weight"])
    if unknown := [name for name in names if name not in VERIFIERS]:
        return deny(f"verifiers are {', '.join(VERIFIERS)} (given: {', '.join(unknown)})")
    if len(names) != len(weights):
        return deny(f"{len(names)} verifiers have {len(weights)} weights; give one each")
    rules: dict[str, Any] = dict(zip(names, map(float, weights), strict=True))
    if theirs.is_on(f"{RL}.overlong_buffer_enable"):
        most, buffer = (
            int(theirs[f"{RL}.{key}"]) for key in ("rollout_max_tokens", "overlong_buffer")
        )
        rules["overlong"] = {
            "weight": float(theirs[f"{RL}.overlong_buffer_penalty_factor"]),
            "options": {"max_tokens": most, "buffer": buffer},
        }
    return becomes({"reward.rules": rules})


def _filtering(value: Any, theirs: Theirs) -> KeyOutcome:
    if not is_on(value):
        return shared.ALL_GROUPS
    if not _is_dapo(theirs):
        return becomes({}, f"filter_groups_enable is {GRPO_ALONE}")
    metric = theirs[f"{RL}.filter_groups_metric"]
    has_verifiers = not theirs.is_on(f"{RL}.is_multimodal")
    is_term = has_verifiers and metric in theirs[f"{RL}.verifier_function"]
    return shared.dynamic_sampling(
        tries=int(theirs[f"{RL}.filter_groups_max_batches"]),
        share=int(theirs[f"{TRAINING}.global_batch_size"] or 0) / int(_trained(theirs)),
        text=FILTERED,
        **({"term": metric} if is_term else {}),
    )


def _layout(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None:
        return deny(f"give {RL}.actor_resource.num_npus=N")
    tensor, pipeline, expert = (
        theirs.size(f"{TRAINING}.{name}_model_parallel_size")
        for name in ("tensor", "pipeline", "expert")
    )
    # With moe_tp_extend_ep the tensor-parallel ranks take whole experts too; without it they split each.
    extends = expert > 1 and theirs.is_on(f"{TRAINING}.moe_tp_extend_ep")
    shape = Shape(
        devices=int(value),
        rollout_tensor=int(theirs[f"{GENERATE}.infer_tensor_parallel_size"]),
        tensor=tensor,
        pipeline=pipeline,
        context=theirs.size(f"{TRAINING}.context_parallel_size"),
        expert=expert * tensor if extends else expert,
        expert_tensor=tensor if expert > 1 and not extends else 1,
        sequence=theirs.is_on(f"{TRAINING}.sequence_parallel"),
        distributes=theirs.is_on(f"{TRAINING}.use_distributed_optimizer"),
    )
    return shape.outcome(theirs.in_turns)


def _load(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None or theirs.is_on(f"{TRAINING}.finetune"):
        return nothing("weights are read from model.path as they are: nothing is converted")
    return deny(CHECKPOINTS)


def _freeze(value: Any, theirs: Theirs) -> KeyOutcome:
    """MindSpeed-MM's description of a model says which parts of a vision tower stay as they are."""
    if not theirs.is_on(f"{RL}.is_multimodal"):
        return nothing(shared.FOLDER)
    path = Path(str(value)).expanduser()
    if value is None or not path.is_file():
        text = (
            f"{value or 'the description of the model'} is not here: vision_encoder and vision_projector are frozen,"
            " as in the published ones; leave trainer.freeze out of the run, where they are to train"
        )
        return becomes({"trainer.freeze": ["*visual.*"]}, text)
    parts_of_it = json.loads(path.read_text(encoding="utf-8")).get("image_encoder", {})
    frozen = [name for name in TOWER if is_on(parts_of_it.get(name, {}).get("freeze"))]
    if len(frozen) == len(TOWER):
        return becomes({"trainer.freeze": ["*visual.*"]})
    return becomes({"trainer.freeze": list(TOWER[frozen[0]])} if frozen else {})


def _reference(value: Any, theirs: Theirs) -> KeyOutcome:
    """Their checkpoints are not read, but two of them are not one model."""
    first = theirs[f"{TRAINING}.load"]
    if value is None or first in (None, value):
        return nothing("the reference is always model.path, also after a resume")
    text = (
        f"there a run begins with {first} and the reference is {value}: here both are model.path. To begin with"
        " other weights set trainer.load in the run, to a checkpoint of them (`trimaran convert MODEL CHECKPOINT`"
        " makes one)"
    )
    return becomes({}, text)


def _split(value: Any, theirs: Theirs) -> KeyOutcome:
    """The shares of rows for training, validation and tests."""
    shares = [float(word) for word in str(value or "").strip("[]").split(",") if word.strip()]
    if not any(shares[1:]):
        return nothing("data.validation is a file of its own")
    return deny(
        "all rows of data.train train here: give 100,0,0, and keep rows back with `trimaran data prepare --hold-out N`"
    )


def _checkpoints(value: Any, theirs: Theirs) -> KeyOutcome:
    """All of them, as there."""
    steps, every = (theirs[f"{TRAINING}.{name}"] for name in ("train_iters", "save_interval"))
    number = shared.kept(None, steps, every)
    folder = {} if value is None else {"run.checkpoints": shared.absolute(value)}
    return becomes({**folder, **number.settings}, number.text)


def _warmup(value: Any, theirs: Theirs) -> KeyOutcome:
    steps = int(float(value or 0) * int(theirs[f"{TRAINING}.train_iters"] or 0))
    return becomes({"trainer.warmup_steps": steps}, MOVES if steps else "")


def _schedule(value: Any, theirs: Theirs) -> KeyOutcome:
    made = shared.schedule("constant", "linear", "cosine")(value, theirs)
    return replace(made, text=MOVES) if made.fate == "noted" else made


def _recompute(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None:
        return NOT_SET
    if value == "selective":
        return becomes({"trainer.recompute": value})
    layers = theirs[f"{TRAINING}.recompute_num_layers"]
    text = f"every layer, not {layers} of each stage" if layers else "every layer"
    return becomes({"trainer.recompute": True}, text)


def _lora(value: Any, theirs: Theirs) -> KeyOutcome:
    rank = theirs[f"{TRAINING}.lora_r"] if value else 0
    return shared.lora(rank, theirs[f"{TRAINING}.lora_alpha"], value)


def _context(value: Any, theirs: Theirs) -> KeyOutcome:
    is_split = theirs.size(f"{TRAINING}.context_parallel_size") > 1
    return becomes({}, HEADS) if is_split and value != "ulysses_cp_algo" else nothing(HEADS)


def _layers(value: Any) -> list[int]:
    return list(map(int, str(value).split(",") if isinstance(value, str | int) else value))


MODEL = (own("model", None, _freeze),)

TRAINER = under(
    TRAINING,
    only("stage", ("ray_grpo", "ray_dapo"), "give ray_grpo or ray_dapo: no critic, no pairs"),
    own("tokenizer_name_or_path", None, shared.model_folder),
    own("data_path", None, _data),
    own("global_batch_size", None, _groups),
    own("train_iters", None, _steps),
    same("save_interval", "run.checkpoint_every", None, int),
    same("seed", "run.seed", 1234, int),
    same("npu_deterministic", "run.deterministic", None, is_on),
    same("use_deter_comp", "run.deterministic", None, is_on),
    same("no_shuffle", "data.shuffle", False, lambda value: not is_on(value)),
    own("micro_batch_size", None, _micro_batch),
    *parts({"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}),
    *parts({"context_parallel_size": 1, "expert_model_parallel_size": 1}),
    *parts({"moe_tp_extend_ep": False, "sequence_parallel": False}),
    *parts({"use_distributed_optimizer": False, "recompute_num_layers": None}),
    own("context_parallel_algo", "ulysses_cp_algo", _context),
    same("num_layer_list", "trainer.pipeline_layers", None, _layers),
    noted("noop_layers", STAGES),
    own("recompute_granularity", None, _recompute),
    switch("swap_optimizer", "trainer.offload", ["optimizer"]),
    same("lr", "trainer.learning_rate", 1e-6, float),
    own("lr_decay_style", "linear", _schedule),
    same("min_lr", "trainer.min_learning_rate", 0.0, float),
    own("lr_warmup_fraction", None, _warmup),
    same("weight_decay", "trainer.weight_decay", 0.01, float),
    same("clip_grad", "trainer.clip_grad", 1.0, float),
    same("adam_beta1", "trainer.beta1", 0.9, float),
    same("adam_beta2", "trainer.beta2", 0.999, float),
    own("load", None, _load),
    *parts({"finetune": False}),
    own("save", None, _checkpoints),
    own("lora_target_modules", None, _lora),
    *parts({"lora_r": 8, "lora_alpha": 16}),
    only("bf16", (True,), "model.dtype is bfloat16: give true"),
    own("split", None, _split),
    only("attention_dropout", (0.0,), "there is no dropout: give 0"),
    only("hidden_dropout", (0.0,), "there is no dropout: give 0"),
    *ignored(
        "attention_mask_type attention_softmax_in_fp32 distributed_backend gemm_gradient_accumulation_fusion"
        " init_method_std initial_loss_scale lora_fusion moe_alltoall_overlap_comm moe_grouped_gemm"
        " moe_permutation_async_comm no_gradient_accumulation_fusion no_masked_softmax_fusion overlap_grad_reduce"
        " recompute_method reuse_fp32_param shape_order swap_attention use_flash_attn use_fused_rmsnorm"
        " use_fused_rotary_pos_emb use_fused_swiglu use_mcore_models",
        shared.DEVICE,
    ),
    *ignored(
        "model norm_epsilon normalization num_layers position_embedding_type qk_layernorm swiglu tokenizer_type"
        " tokenizer_not_use_fast use_rotary_position_embeddings",
        shared.FOLDER,
    ),
    *ignored("no_pad_to_seq_lengths reset_attention_mask", shared.PADDING),
    *ignored(
        "seq_length dataset_additional_keys full_shuffle_instruction_dataset num_workers",
        shared.ROWS_OF_FILE,
    ),
    *ignored(
        "no_load_optim no_load_rng no_save_optim no_save_rng lora_ckpt_filter no_shared_storage",
        "a checkpoint holds all that a resume needs, and lies in run.checkpoints",
    ),
    *ignored("log_interval eval_interval eval_iters dpo_loss_type", shared.REPORTS),
)

ALGORITHM = under(
    RL,
    own("actor_resource.num_npus", None, _layout),
    same("max_prompt_length", "rollout.max_prompt_tokens", 512, int),
    same("n_samples_per_prompt", "rollout.group_size", 1, int),
    own("mini_batch_size", 1, _updates),
    same("epochs", "algorithm.epochs", 1, int),
    same("shuffle_mini_batch", "algorithm.shuffle", False),
    choice(
        "adv_estimator",
        "algorithm.advantage",
        "group_norm",
        {"group_norm": "group"},
        "gae needs a critic, and there is none here: ",
    ),
    own("clip_ratio", 0.2, _loss),
    *parts({"clip_higher_enable": False, "clip_ratio_low": 0.1, "clip_ratio_high": 0.1}),
    own("token_level_loss", True, _aggregation),
    same("entropy_coeff", "algorithm.entropy.coefficient", 0.0, float),
    own("init_kl_coef", 0.01, _kl),
    *parts({"kl_penalty": "low_var_kl"}),
    only("kl_ctrl_type", ("fixed",), "give fixed, and set algorithm.kl.adaptive in the run"),
    only("use_kl_in_reward", (False,), "of ray_ppo alone: give false"),
    only("gamma", (1.0,), shared.NO_DISCOUNT),
    own("verifier_function", ["base_acc"], _reward),
    *parts({"verifier_weight": [1.0], "overlong_buffer_enable": False, "overlong_buffer": 0}),
    *parts({"overlong_buffer_penalty_factor": 1.0, "rollout_max_tokens": 2048}),
    same("verifier_parallel", "reward.workers", None, int),
    only("rule_reward", (True,), shared.NO_MODEL),
    own("filter_groups_enable", False, _filtering),
    *parts({"filter_groups_metric": "acc", "filter_groups_max_batches": 1}),
    *parts({"filter_groups_train_batch_size": 1}),
    own("is_multimodal", False, _images),
    *parts({"use_dynamic_bsz": False, "max_packing_token_size": 4096}),
    *parts({"update_max_packing_token_size": None}),
    own("integrated_mode_config.ref_model_load_path", None, _reference),
    only(
        "multi_turn_enable",
        (False,),
        "leave it out, and set environment in the run (docs/agents.md)",
    ),
    switch("use_wandb", "metrics.sinks", ["wandb"]),
    same("wandb_project", "metrics.project"),
    same("wandb_exp_name", "run.name", None, shared.run_name),
    *ignored(
        "actor_resource.* integrated_mode_config.* use_integrated_worker share_backbone",
        shared.TURNS,
    ),
    *ignored("colocate_actor_and_vit", IN_TRAINER),
    *ignored("lam", "of gae alone"),
    *ignored("critic_resource.* cliprange_value", shared.NO_CRITIC),
    *ignored(
        "ref_max_packing_token_size actor_max_packing_token_size ref_forward_micro_batch_size"
        " actor_forward_micro_batch_size use_dp_batch_balance",
        shared.LIMIT,
    ),
    *ignored("use_remove_padding", shared.PADDING),
    *ignored(
        "actor_rollout_dispatch_size actor_logprob_dispatch_size actor_update_dispatch_size reward_dispatch_size"
        " adv_dispatch_size blocking async_engine guarantee_order zmq_communication",
        shared.GROUPS,
    ),
    *ignored(
        "tool_config_path max_tool_calls max_parallel_calls max_total_response_length max_tool_response_length"
        " tool_response_truncate_side tool_parser_format",
        "answers have one turn here",
    ),
    *ignored(
        "hccl_buffersize runtime_env_path num_cpus_for_local_task",
        "variables are those of the shell that starts the run; Ray's are its own",
    ),
    *ignored("log_max_throughput use_tensorboard", shared.REPORTS),
)

GENERATION = under(
    GENERATE,
    same("infer_tensor_parallel_size", "rollout.tensor_parallel", 8, int),
    only("infer_pipeline_parallel_size", (1,), "a replica has one stage: give 1"),
    same("max_num_seqs", "rollout.max_concurrency", 1, int),
    own(
        "max_model_len",
        2048,
        shared.longest_sequence(f"{RL}.max_prompt_length", f"{SAMPLING}.max_tokens"),
    ),
    choice("dtype", "model.dtype", "bfloat16", {"bfloat16": "bfloat16"}),
    same("gpu_memory_utilization", "rollout.memory_fraction", 0.5, float, shared.MEMORY),
    # Their default is false; it changes no answer, so without the key it is on.
    same("enable_prefix_caching", "rollout.prefix_cache", None, is_on),
    same("enforce_eager", "rollout.eager", True),
    only("torchair_graph", (False,), "rollout.eager chooses captured graphs: give false"),
    same("limit_mm_image_per_prompt", "rollout.limit_images", 1, shared.above(0)),
    same("sampling_config.max_tokens", "rollout.max_tokens", 128, int),
    same("sampling_config.temperature", "rollout.temperature", 0.2, float),
    only("sampling_config.top_p", (1,), f"{shared.WHOLE}1"),
    only("sampling_config.top_k", (-1, 0), f"{shared.WHOLE}-1 (their default is 50)", default=50),
    only("sampling_config.min_p", (0,), f"{shared.WHOLE}0"),
    *ignored("offload_train_optimizer offload_train_grad offload_train_param", shared.TURNS),
    *ignored(
        "infer_expert_parallel_size enable_expert_parallel expert_map_path",
        "experts of a replica are split by rollout.tensor_parallel, and stay where they are",
    ),
    *ignored(
        "max_num_batched_tokens num_scheduler_steps ascend_scheduler_config_enabled trust_remote_code"
        " sampling_config.logprobs sampling_config.detokenize sampling_config.seed",
        shared.ENGINE,
    ),
)

MINDSPEED_RL = SourceSystem(
    "mindspeed-rl",
    "MindSpeed-RL",
    (TRAINING, RL),
    (
        *MODEL,
        *TRAINER,
        *ALGORITHM,
        *GENERATION,
        *ignored("vit_config.*", IN_TRAINER),
        *ignored("critic_config.*", shared.NO_CRITIC),
    ),
    # Its loss does not look at the engine's log-probabilities.
    {"algorithm.correction.weights": "none"},
    {ACTOR: TRAINING},
)
