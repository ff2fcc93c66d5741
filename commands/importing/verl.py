"""verl's keys. Their meaning and defaults: verl/trainer/config of volcengine/verl (January 2026) and of
verl-project/verl (August 2026), with the trainers FSDP and Megatron."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from commands.importing import verl_conversions as to
from commands.importing.conversion import System
from commands.importing.number_types import (
    GRADIENTS,
    MAIN_WEIGHTS,
    MOMENTS,
    ONE_TYPE,
    computed_in,
    gradients,
    main_weights,
    moments,
)
from commands.importing.rows import (
    Outcome,
    Row,
    Theirs,
    choice,
    each,
    ignored,
    is_on,
    noted,
    only,
    own,
    part,
    refused,
    same,
    switch,
    told,
)
from commands.importing.shared import (
    AHEAD,
    HERE,
    LANGUAGE_ALONE,
    LENGTHS,
    LOGGED_TEXT,
    MEGATRON,
    MEMORY,
    NO_CRITIC,
    NO_WARMUP,
    PADDING,
    ROOM,
    TURNS,
    VALIDATES_ONLY,
    WHOLE,
    data_file,
    every,
    excluded,
    freeze_tower,
    hosts,
    limit_images,
    logged,
    loggers,
    longest_sequence,
    model_folder,
    project_name,
    real,
    run_name,
    top_k_of_validation,
    top_p_of_validation,
    validates_only,
    whole,
)

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
MCORE = f"{ACTOR}.megatron"
TRANSFORMER = f"{MCORE}.override_transformer_config"

PROFILERS = "docs/observability.md has what each process reports; there is no such profiler here"
TOOLS = "answers have one turn here, without tools; give enable=False"
NOTHING_ELSE = "with adapters nothing else trains here; give true"
OVERRIDE = f"{ACTOR}.optim.override_optimizer_config"
OWN_MANAGER = (
    "a reward is a function here, as custom_reward_function names it: write the manager's sum of scores into"
    " one, and leave it out"
)


def _template_kwarg(name: str, to: Callable[[Any], Any]) -> Row:
    def convert(value: Any, theirs: Theirs) -> Outcome:
        if value is None:
            return Outcome("ignored", "not set")
        return Outcome("mapped", "", {f"data.chat_template_kwargs.{name}": to(value)})

    key = f"data.apply_chat_template_kwargs.{name}"
    return own(key, "data.chat_template_kwargs", None, f"{name} in it", convert)


ROWS: tuple[Row, ...] = (
    # Data.
    own(
        "data.train_files",
        "data.train",
        None,
        "one file or several, each with a weight: its rows",
        data_file("data.train", "data.train_files"),
    ),
    own("data.val_files", "data.validation", None, "one file or several", to.validation),
    own("data.prompt_key", "data.prompt_key, data.answer_key", "prompt", to.ANSWER, to.columns),
    own(
        "data.reward_fn_key",
        "",
        "data_source",
        "it is read where the reward is chosen; functions get the column data_source, and with one another name"
        " is refused",
        to.source_column,
    ),
    same("data.max_prompt_length", "rollout.max_prompt_tokens", 512, to=whole),
    same("data.max_response_length", "rollout.max_tokens", 512, to=whole),
    own(
        "data.train_batch_size",
        "run.groups_per_step",
        1024,
        "prompts of a step; each is answered rollout.n times. gen_batch_size goes before it, but with"
        " filter_groups",
        lambda value, theirs: Outcome("mapped", "", {"run.groups_per_step": to.prompts(theirs)}),
    ),
    part(
        "data.gen_batch_size",
        "data.train_batch_size",
        None,
        "run.groups_per_step, where it is given; with filter_groups it says how many may be replaced."
        " Epochs are counted by it",
    ),
    own(
        "data.train_max_samples",
        "",
        -1,
        "-1: all rows. Fewer than the file has are refused, as the file is read whole",
        to.most_rows,
    ),
    own(
        "data.val_max_samples",
        "validation.max_prompts",
        -1,
        "-1: all. Else the first ones, which is noted where theirs are drawn",
        to.most_validated,
    ),
    ignored(
        "data.val_batch_size",
        "prompts of a validation are under way as the engines have room, and as their images take memory",
    ),
    same("data.shuffle", "data.shuffle", True),
    same("data.seed", "run.seed", None, to=whole),
    ignored("data.validation_shuffle", "the mean does not know an order", False),
    ignored(
        "data.filter_overlong_prompts", "a longer prompt is skipped, counted and reported", False
    ),
    ignored("data.filter_overlong_prompts_workers", "prompts are counted as they are issued", 1),
    own(
        "data.truncation",
        "",
        "error",
        "error: a longer prompt is skipped, not cut. Another value is refused, but with filter_overlong_prompts,"
        " which leaves none to cut",
        to.truncation,
    ),
    own(
        "data.image_key",
        "data.image_key, data.min_pixels, data.max_pixels",
        "images",
        "where the rows have the column. Images are scaled as the model's preprocessor_config.json says; where"
        " it is not here, as Qwen2.5-VL's",
        to.images,
    ),
    ignored("data.video_key", "no model here takes videos", "videos"),
    ignored("data.audio_key", "no model here takes sounds", "audios"),
    ignored("data.image_patch_size", "the model's processor says it", 14),
    ignored("data.return_multi_modal_inputs", HERE, True),
    told("data.mm_processor_kwargs.*", "images are scaled by data.min_pixels and data.max_pixels"),
    ignored("data.padding_mode", PADDING),
    only("data.tokenizer", None, (None,), "not set", "the tokenizer is that of the model's folder"),
    _template_kwarg("enable_thinking", is_on),
    _template_kwarg("reasoning_effort", str),
    refused(
        "data.apply_chat_template_kwargs.*",
        "leave it out, and give the run data.chat_template_kwargs, a mapping of names and values",
    ),
    only(
        "data.custom_cls.path",
        None,
        (None,),
        "not set",
        "a format of files comes from an installed"
        " package: docs/extending.md, `trimaran.dataset_formats`",
    ),
    ignored("data.custom_cls.name", "with custom_cls.path"),
    only(
        "data.sampler.class_path",
        None,
        (None,),
        "not set",
        "the order is prompt order or data.shuffle",
    ),
    ignored("data.sampler.class_name", "with sampler.class_path"),
    only(
        "data.datagen.path",
        None,
        (None,),
        "not set",
        "rows are those of the file: write them there before the run, and leave it out",
    ),
    ignored("data.datagen.*", "rows are those of the file"),
    only("data.tool_config_path", None, (None,), "not set", TOOLS),
    only("data.function_tool_path", None, (None,), "not set", TOOLS),
    ignored("data.use_shm", "the file is read once", False),
    ignored("data.trust_remote_code", "code of a model's folder is never run", False),
    ignored("data.dataloader_num_workers", "the file is read once", 8),
    ignored("data.return_raw_chat", HERE, True),
    ignored("data.return_raw_input_ids", HERE, False),
    ignored("data.return_full_prompt", HERE, False),
    # Algorithm.
    own(
        "algorithm.adv_estimator",
        "algorithm.advantage",
        "gae",
        "grpo → group, rloo, remax, opo, gdpo,"
        " grpo_passk → best_of_group, reinforce_plus_plus → reinforce_pp, reinforce_plus_plus_baseline →"
        " reinforce_pp_baseline. gae, their default, is refused: there is no critic",
        to.advantage,
    ),
    part("algorithm.norm_adv_by_std_in_grpo", "algorithm.adv_estimator", True),
    refused(
        "algorithm.gdpo_reward_keys",
        "here the terms are the rules of reward.rules, and other numbers of a function's dict are metrics: leave"
        " it out, and give each of these scores a rule of its own",
    ),
    only(
        "algorithm.gamma",
        1.0,
        (1, 1.0),
        "there is no discount here",
        "there is no discount here; give 1",
    ),
    ignored("algorithm.lam", "of gae alone", 1.0),
    part("algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss", False),
    part("algorithm.kl_penalty", f"{ACTOR}.use_kl_loss", "kl"),
    part("algorithm.kl_ctrl.type", f"{ACTOR}.use_kl_loss", "fixed"),
    part("algorithm.kl_ctrl.kl_coef", f"{ACTOR}.use_kl_loss", 0.001),
    part("algorithm.kl_ctrl.horizon", f"{ACTOR}.use_kl_loss", 10000),
    part("algorithm.kl_ctrl.target_kl", f"{ACTOR}.use_kl_loss", 0.1),
    own(
        "algorithm.rollout_correction.rollout_is",
        "algorithm.correction",
        None,
        "null → weights: none; token, sequence; bypass_mode → old: rollout",
        to.correction,
    ),
    own(
        "algorithm.rollout_correction.rollout_is_threshold",
        "algorithm.correction.cap, algorithm.correction.token_bounds",
        2.0,
        "a number → cap; `low_high`, of the weights of tokens → token_bounds",
        to.correction_bounds,
    ),
    part(
        "algorithm.rollout_correction.bypass_mode", "algorithm.rollout_correction.rollout_is", False
    ),
    only(
        "algorithm.rollout_correction.rollout_rs",
        None,
        (None,),
        "no completion is left out",
        "algorithm.correction.token_bounds and geometric_bounds leave tokens or completions out; give null,"
        " and set one of them in the run",
    ),
    ignored("algorithm.rollout_correction.rollout_rs_threshold", "with rollout_rs"),
    only(
        "algorithm.rollout_correction.loss_type",
        "ppo_clip",
        ("ppo_clip",),
        "algorithm.loss",
        "give ppo_clip",
    ),
    only(
        "algorithm.rollout_correction.rollout_is_batch_normalize",
        False,
        (False,),
        "weights are not normalized",
        "weights are not normalized; give false",
    ),
    own(
        "algorithm.filter_groups.enable",
        "algorithm.dynamic_sampling",
        False,
        "groups whose rewards are all equal are replaced",
        to.filtering,
    ),
    part("algorithm.filter_groups.metric", "algorithm.filter_groups.enable", None),
    part("algorithm.filter_groups.max_num_gen_batches", "algorithm.filter_groups.enable", 0),
    ignored(
        "algorithm.filter_groups.max_inflight_gen_batches", "run.max_lag bounds what is under way"
    ),
    only("algorithm.use_pf_ppo", False, (False,), "it is off", "give false"),
    ignored("algorithm.pf_ppo.*", "it is off"),
    # Actor.
    part(
        f"{ACTOR}.strategy",
        "trainer.n_gpus_per_node",
        "fsdp",
        "megatron: its layout is taken; the others have no split of a parameter but Ulysses'",
    ),
    own(
        f"{ACTOR}.ppo_mini_batch_size",
        "algorithm.updates_per_batch",
        256,
        "data.train_batch_size / this: both count prompts, not sequences",
        to.updates,
    ),
    own(
        f"{ACTOR}.use_dynamic_bsz",
        "trainer.micro_batch_tokens",
        False,
        "true: ppo_max_token_len_per_gpu x ranks of a sequence; false: ppo_micro_batch_size_per_gpu x"
        " (max_prompt_length + max_response_length), a bound that holds at least as many sequences",
        to.micro_batch,
    ),
    part(f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.use_dynamic_bsz"),
    part(f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.use_dynamic_bsz", 16384),
    ignored(f"{ACTOR}.ppo_micro_batch_size", "its successor is ppo_micro_batch_size_per_gpu"),
    same(f"{ACTOR}.ppo_epochs", "algorithm.epochs", 1, to=whole),
    same(f"{ACTOR}.shuffle", "algorithm.shuffle", False),
    ignored(f"{ACTOR}.data_loader_seed", "run.seed", 42),
    own(
        f"{ACTOR}.policy_loss.loss_mode",
        "algorithm.loss",
        "vanilla",
        "vanilla → ppo_clip, gspo, cispo, sapo, geo_mean → geometric_mean, clip_cov, kl_cov",
        to.loss,
    ),
    part(
        f"{ACTOR}.clip_ratio",
        f"{ACTOR}.policy_loss.loss_mode",
        0.2,
        "has an effect there, and so here, only where clip_ratio_low and clip_ratio_high are null",
    ),
    part(f"{ACTOR}.clip_ratio_low", f"{ACTOR}.policy_loss.loss_mode", 0.2),
    part(f"{ACTOR}.clip_ratio_high", f"{ACTOR}.policy_loss.loss_mode", 0.2),
    part(
        f"{ACTOR}.clip_ratio_c", f"{ACTOR}.policy_loss.loss_mode", 3.0, "the dual clip of ppo_clip"
    ),
    part(f"{ACTOR}.tau_pos", f"{ACTOR}.policy_loss.loss_mode", 1.0),
    part(f"{ACTOR}.tau_neg", f"{ACTOR}.policy_loss.loss_mode", 1.05),
    told(f"{ACTOR}.policy_loss.tau_pos", f"their program does not read it: give {ACTOR}.tau_pos"),
    told(f"{ACTOR}.policy_loss.tau_neg", f"their program does not read it: give {ACTOR}.tau_neg"),
    part(f"{ACTOR}.policy_loss.clip_cov_ratio", f"{ACTOR}.policy_loss.loss_mode", 2e-4),
    part(f"{ACTOR}.policy_loss.clip_cov_lb", f"{ACTOR}.policy_loss.loss_mode", 1.0),
    part(f"{ACTOR}.policy_loss.clip_cov_ub", f"{ACTOR}.policy_loss.loss_mode", 5.0),
    part(f"{ACTOR}.policy_loss.kl_cov_ratio", f"{ACTOR}.policy_loss.loss_mode", 2e-4),
    part(f"{ACTOR}.policy_loss.ppo_kl_coef", f"{ACTOR}.policy_loss.loss_mode", 0.1),
    own(
        f"{ACTOR}.loss_agg_mode",
        "algorithm.aggregation",
        "token-mean",
        "token-mean → token_mean, seq-mean-token-sum → sequence_sum, seq-mean-token-mean → sequence_mean,"
        " seq-mean-token-sum-norm → fixed; gspo, sapo and geo_mean take sequence_mean whatever it says, and then"
        " so do the KL term and the entropy here",
        to.aggregation,
    ),
    part(f"{ACTOR}.loss_scale_factor", f"{ACTOR}.loss_agg_mode"),
    same(f"{ACTOR}.entropy_coeff", "algorithm.entropy.coefficient", 0, to=real),
    same(f"{ACTOR}.calculate_entropy", "algorithm.entropy.exact", False),
    own(
        f"{ACTOR}.use_kl_loss",
        "algorithm.kl",
        False,
        "true → place: loss, with kl_loss_coef and kl_loss_type; algorithm.use_kl_in_reward → place: reward,"
        " with algorithm.kl_ctrl and kl_penalty; both are refused. The limit of 10 nats holds for each"
        " estimator here",
        to.kl,
    ),
    part(f"{ACTOR}.kl_loss_coef", f"{ACTOR}.use_kl_loss", 0.001),
    part(f"{ACTOR}.kl_loss_type", f"{ACTOR}.use_kl_loss", "low_var_kl"),
    own(f"{ACTOR}.grad_clip", "trainer.clip_grad", 1.0, "of the FSDP trainer", to.clip),
    part(
        f"{ACTOR}.optim.clip_grad",
        f"{ACTOR}.grad_clip",
        1.0,
        "trainer.clip_grad, of Megatron's trainer",
    ),
    same(f"{ACTOR}.optim.lr", "trainer.learning_rate", 1e-6, to=real),
    same(
        f"{ACTOR}.optim.weight_decay",
        "trainer.weight_decay",
        0.01,
        "norms and biases do not decay here",
        real,
    ),
    own(
        f"{ACTOR}.optim.betas",
        "trainer.beta1, trainer.beta2",
        [0.9, 0.999],
        "of the FSDP trainer; Megatron's does not read it, and has 0.9 and 0.999 without its own keys",
        to.betas,
    ),
    part(f"{OVERRIDE}.betas", f"{ACTOR}.optim.betas", None, "goes before optim.betas"),
    part(f"{OVERRIDE}.adam_beta1", f"{ACTOR}.optim.betas", None, "of Megatron's trainer"),
    part(f"{OVERRIDE}.adam_beta2", f"{ACTOR}.optim.betas", None, "of Megatron's trainer"),
    same(f"{OVERRIDE}.eps", "trainer.epsilon", None, "of the FSDP trainer", real),
    same(f"{OVERRIDE}.adam_eps", "trainer.epsilon", None, "of Megatron's trainer", real),
    only(
        f"{OVERRIDE}.amsgrad",
        False,
        (False, None),
        "it is off",
        "the optimizer is AdamW without it; give false",
    ),
    only(
        f"{OVERRIDE}.maximize",
        False,
        (False, None),
        "it is off",
        "the loss is made smaller; give false",
    ),
    only(
        f"{OVERRIDE}.decoupled_weight_decay",
        True,
        (True, None),
        "so here",
        "the optimizer is AdamW, whose decay is decoupled; give true",
    ),
    *(
        own(key, "", None, f"float32: {MOMENTS}. Another one is refused", moments)
        for name in ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
        for key in (f"{OVERRIDE}.{name}", f"{ACTOR}.optim.{name}")
    ),
    *each(
        OVERRIDE,
        "optimizer_cpu_offload optimizer_offload_fraction offload_fraction overlap_cpu_optimizer_d2h_h2d"
        " use_torch_optimizer_for_cpu_offload",
        "the optimizer is on the host with trainer.offload: [optimizer]",
    ),
    *each(
        OVERRIDE,
        "use_precision_aware_optimizer store_param_remainders foreach fused capturable differentiable",
        "how AdamW is computed follows from the device; its result is the same",
    ),
    refused(
        f"{OVERRIDE}.*",
        "the optimizer is AdamW with optim's lr, weight_decay and betas, and override_optimizer_config's eps or"
        " adam_eps: leave it out",
    ),
    own(
        f"{ACTOR}.optim.lr_warmup_steps",
        "trainer.warmup_steps",
        -1,
        f"0 or below: lr_warmup_steps_ratio x steps. A warm-up is noted: {AHEAD}",
        to.warmup,
    ),
    part(f"{ACTOR}.optim.lr_warmup_steps_ratio", f"{ACTOR}.optim.lr_warmup_steps", 0.0),
    choice(
        f"{ACTOR}.optim.lr_scheduler_type",
        "trainer.schedule",
        "constant",
        {"constant": "constant", "cosine": "cosine"},
        "give constant or cosine",
    ),
    choice(
        f"{ACTOR}.optim.lr_decay_style",
        "trainer.schedule",
        None,
        {"constant": "constant", "cosine": "cosine", "linear": "linear"},
        "give one of these",
    ),
    own(f"{ACTOR}.optim.min_lr_ratio", "trainer.min_learning_rate", 0.0, "x lr", to.least_rate),
    same(f"{ACTOR}.optim.min_lr", "trainer.min_learning_rate", None, "of Megatron's trainer", real),
    choice(
        f"{ACTOR}.optim.optimizer",
        "trainer.optimizer",
        "AdamW",
        {"AdamW": "adamw", "adam": "adamw", "Adam": "adamw"},
        "the optimizer is AdamW",
    ),
    ignored(f"{ACTOR}.fsdp_config.param_offload", TURNS, False),
    own(f"{ACTOR}.fsdp_config.optimizer_offload", "trainer.offload", False, ROOM, to.offload),
    ignored(f"{ACTOR}.fsdp_config.wrap_policy.*", "no parameter is gathered for a layer here"),
    own(f"{MCORE}.optimizer_offload", "trainer.offload", False, ROOM, to.offload),
    own(f"{MCORE}.grad_offload", "trainer.offload", False, ROOM, to.offload),
    ignored(f"{MCORE}.param_offload", TURNS, False),
    part(
        f"{MCORE}.tensor_model_parallel_size",
        "trainer.n_gpus_per_node",
        1,
        "trainer.tensor_parallel",
    ),
    part(
        f"{MCORE}.pipeline_model_parallel_size",
        "trainer.n_gpus_per_node",
        1,
        "trainer.pipeline_parallel",
    ),
    part(
        f"{MCORE}.context_parallel_size", "trainer.n_gpus_per_node", 1, "trainer.context_parallel"
    ),
    part(
        f"{MCORE}.expert_model_parallel_size",
        "trainer.n_gpus_per_node",
        1,
        "trainer.expert_parallel",
    ),
    part(
        f"{MCORE}.sequence_parallel",
        "trainer.n_gpus_per_node",
        True,
        "trainer.sequence_parallel, where tensor_parallel is above 1",
    ),
    part(
        f"{MCORE}.expert_tensor_parallel_size",
        "trainer.n_gpus_per_node",
        None,
        "trainer.expert_tensor_parallel; tensor_model_parallel_size where it is not set and"
        " expert_model_parallel_size is above 1",
    ),
    own(
        f"{MCORE}.virtual_pipeline_model_parallel_size",
        "trainer.virtual_stages",
        None,
        "",
        to.virtual,
    ),
    own(
        f"{TRANSFORMER}.recompute_granularity",
        "trainer.recompute",
        None,
        "full: true; selective: the same, of the attention alone",
        to.recompute,
    ),
    noted(
        f"{TRANSFORMER}.moe_aux_loss_coeff",
        "trainer.router.load_balancing",
        None,
        "taken over the packed tokens of a micro-batch",
        real,
    ),
    same(f"{TRANSFORMER}.moe_z_loss_coeff", "trainer.router.z_loss", None, to=real),
    ignored(f"{MCORE}.use_dist_checkpointing", "weights are read from the model's folder", False),
    ignored(f"{MCORE}.dist_checkpointing_path", "weights are read from the model's folder"),
    ignored(f"{MCORE}.use_distributed_optimizer", "on wherever ranks share parameters", True),
    ignored(f"{MCORE}.use_mbridge", "weights are read from the model's folder", True),
    part(
        f"{ACTOR}.ulysses_sequence_parallel_size",
        "trainer.n_gpus_per_node",
        1,
        "trainer.context_parallel",
    ),
    own(
        f"{ACTOR}.freeze_vision_tower", "trainer.freeze", False, "true → `*visual.*`", freeze_tower
    ),
    own(
        f"{ACTOR}.router_replay.mode",
        "trainer.router.replay",
        "disabled",
        "R3 → true, with rollout.enable_rollout_routing_replay; R2 is refused",
        to.replay,
    ),
    own(
        f"{MCORE}.router_replay.mode",
        "trainer.router.replay",
        "disabled",
        "R3 → true, with rollout.enable_rollout_routing_replay; R2 is refused",
        to.replay,
    ),
    ignored(f"{ACTOR}.router_replay.*", "off"),
    ignored(
        f"{ACTOR}.checkpoint.*",
        "a checkpoint holds all that a resume needs; it is written while training goes on",
    ),
    ignored(f"{ACTOR}.use_remove_padding", PADDING, True),
    ignored(
        f"{ACTOR}.use_prefix_grouper",
        "completions of a prompt share its tokens in a micro-batch anyway",
        False,
    ),
    ignored(f"{ACTOR}.use_torch_compile", "nothing is compiled", True),
    ignored(
        f"{ACTOR}.use_fused_kernels", "logits of a large micro-batch are computed by parts", False
    ),
    ignored(
        f"{ACTOR}.entropy_from_logits_with_chunking",
        "logits of a large micro-batch are computed by parts",
        False,
    ),
    ignored(
        f"{ACTOR}.entropy_checkpointing",
        "logits of a large micro-batch are computed by parts",
        False,
    ),
    ignored(f"{ACTOR}.profiler.*", PROFILERS),
    ignored(f"{ACTOR}.rollout_n", "rollout.n"),
    only(
        f"{ACTOR}.load_weight",
        True,
        (True, None),
        "always",
        "a run begins with the weights of the model's folder; give true",
    ),
    only(f"{ACTOR}.qat.enable", False, (False,), "off", "weights are not quantized here"),
    ignored(f"{ACTOR}.qat.*", "off"),
    ignored(f"{ACTOR}.calculate_sum_pi_squared", "not measured", False),
    ignored(f"{ACTOR}.sum_pi_squared_checkpointing", "not measured", False),
    ignored(f"{ACTOR}.veomni.*", MEGATRON),
    ignored(f"{ACTOR}.pad_to_length", PADDING),
    *each(
        f"{ACTOR}.fsdp_config",
        "entropy_checkpointing entropy_from_logits_chunk_size entropy_from_logits_with_chunking"
        " forward_only forward_prefetch fsdp_size offload_policy pad_to_length"
        " pad_to_length_bucket reshard_after_forward seed strategy ulysses_sequence_parallel_size"
        " use_orig_params use_torch_compile mixed_precision.* qat.* turbo_config.*",
        "parameters are split by trainer.tensor_parallel and pipeline_parallel, the optimizer by"
        " distributed_optimizer; numbers are those of model.dtype",
    ),
    *(
        own(
            f"{ACTOR}.{key}",
            "",
            "bfloat16",
            f"{ONE_TYPE}; another one is refused",
            computed_in(f"{ROLLOUT}.dtype"),
        )
        for key in (
            "fsdp_config.dtype",
            "fsdp_config.mixed_precision.param_dtype",
            "megatron.dtype",
        )
    ),
    own(f"{ACTOR}.fsdp_config.model_dtype", "", "fp32", MAIN_WEIGHTS, main_weights),
    own(f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype", "", None, GRADIENTS, gradients),
    own(f"{MCORE}.override_ddp_config.grad_reduce_in_fp32", "", True, GRADIENTS, to.in_float32),
    *(
        only(f"{key}.qat.enable", False, (False, None), "off", "weights are not quantized here")
        for key in (f"{ACTOR}.fsdp_config", MCORE, ROLLOUT)
    ),
    switch(f"{ACTOR}.fsdp_config.full_determinism", False, "run.deterministic", True, ""),
    *each(
        MCORE,
        "dist_checkpointing_prefix dist_ckpt_optim_fully_reshardable distrib_optim_fully_reshardable_mem_efficient"
        " dynamic_context_parallel forward_only max_seqlen_per_dp_cp_rank override_ddp_config.* router_replay.*"
        " seed use_megatron_fsdp use_remove_padding vanilla_mbridge",
        "weights are read from the model's folder, and split as trainer says; run.seed is the seed",
    ),
    *each(MCORE, "pad_bshd_to_minibatch_max pad_to_length pad_to_length_bucket", PADDING),
    *each(
        MCORE,
        "entropy_from_logits_with_chunking entropy_from_logits_chunk_size",
        "logits of a large micro-batch are computed by parts",
    ),
    ignored(f"{MCORE}.qat.*", "off"),
    refused(
        f"{MCORE}.override_mcore_model_config.*",
        "the model is what its config.json says: write it there, and leave it out",
    ),
    *each(
        TRANSFORMER,
        "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split apply_rope_fusion"
        " attention_backend bias_activation_fusion bias_dropout_fusion cp_partition_mode"
        " deallocate_pipeline_outputs gradient_accumulation_fusion masked_softmax_fusion"
        " max_seqlen_per_dp_cp_rank moe_enable_deepep moe_grouped_gemm moe_permute_fusion"
        " moe_shared_expert_overlap moe_token_dispatcher_type persist_layer_norm recompute_method"
        " recompute_modules recompute_num_layers sequence_packing_scheduler use_flash_attn context_parallel_algo"
        " normalization swiglu use_fused_rmsnorm use_fused_swiglu",
        "how layers are computed follows from the model's config.json and the device",
    ),
    *each(
        TRANSFORMER,
        "context_parallel_size sequence_parallel use_distributed_optimizer",
        f"the key of the same name in {MCORE} counts",
    ),
    *each(
        TRANSFORMER,
        "apply_dsa_kernel_fusion dsa_indexer_loss_coeff dsa_indexer_use_sparse_loss use_ascend_gdn"
        " use_fused_mhc use_naive_l2norm use_triton_gdn",
        "of layers that no model here has",
    ),
    own(
        f"{TRANSFORMER}.moe_router_dtype",
        "",
        None,
        f"{to.ROUTER_NUMBERS}; fp32 and fp64 are noted",
        to.router_numbers,
    ),
    told(
        f"{TRANSFORMER}.pipeline_model_parallel_layout",
        "trainer.pipeline_layers says how many layers each stage has",
    ),
    *(
        own(
            f"{TRANSFORMER}.num_layers_in_{end}_pipeline_stage",
            "trainer.pipeline_layers",
            None,
            "the other stages share the rest of the model's layers",
            to.uneven_stages,
        )
        for end in ("first", "last")
    ),
    told(
        f"{TRANSFORMER}.moe_router_load_balancing_type", "trainer.router has two losses on routers"
    ),
    told(
        f"{TRANSFORMER}.moe_router_bias_update_rate",
        "a router has no bias that follows its load here",
    ),
    told(
        f"{TRANSFORMER}.moe_router_enable_expert_bias",
        "a router has no bias that follows its load here",
    ),
    *each(
        f"{ACTOR}.optim",
        "lr_wsd_decay_steps lr_wsd_decay_style total_training_steps use_checkpoint_opt_param_scheduler",
        "the schedule is trainer.schedule, from the first step to run.steps",
    ),
    ignored(
        f"{ACTOR}.optim.use_precision_aware_optimizer",
        "how AdamW is computed follows from the device; its result is the same",
    ),
    *each(
        f"{ACTOR}.optim",
        "muon_coefficient_type muon_extra_scale_factor muon_fp32_matmul_prec muon_match_adamw_update_rms"
        " muon_momentum muon_nesterov muon_num_ns_steps muon_scalar_optimizer muon_scale_mode muon_split_qkv"
        " muon_tp_mode use_layer_wise_distributed_optimizer use_layer_wise_param_layout",
        "of the optimizer Muon; here it is AdamW",
    ),
    own(
        f"{ACTOR}.optim.zero_indexed_step",
        "",
        True,
        f"false is as here, but Megatron's trainer does not read it. Else a rate that falls is noted: {AHEAD}",
        to.first_step,
    ),
    own(
        f"{ACTOR}.optim.lr_decay_steps",
        "",
        None,
        to.TO_THE_END + ". Another number of steps is refused where the rate falls",
        to.decay_steps,
    ),
    own(
        f"{ACTOR}.optim.num_cycles",
        "",
        0.5,
        "of cosine alone: half a cycle, from the greatest rate to the least. Another value is refused",
        to.cycles,
    ),
    only(
        f"{ACTOR}.optim.lr_warmup_init",
        0.0,
        (0, 0.0),
        "a warm-up begins at 0",
        "a warm-up begins at 0 here; give 0",
    ),
    only(
        f"{ACTOR}.optim.weight_decay_incr_style",
        "constant",
        ("constant",),
        "trainer.weight_decay holds in each step",
        "trainer.weight_decay holds in each step; give constant",
    ),
    only(
        f"{ACTOR}.optim.optimizer_impl",
        "torch.optim",
        ("torch.optim",),
        "AdamW in full precision",
        "the optimizer is AdamW, with its numbers in full precision; give torch.optim",
    ),
    choice(
        f"{ACTOR}.optim.warmup_style",
        "trainer.schedule",
        None,
        {"constant": "constant", "cosine": "cosine"},
        "give constant or cosine",
    ),
    ignored(f"{ACTOR}.policy_loss.dro_beta", "of a loss that is not here"),
    ignored(
        f"{ACTOR}.entropy_from_logits_chunk_size",
        "logits of a large micro-batch are computed by parts",
    ),
    refused(
        "actor@actor_rollout_ref.actor",
        "it takes the defaults of another trainer of theirs: leave it out, and give the keys of FSDP or Megatron",
    ),
    refused(f"{ACTOR}.engine.*", "of the trainer megatron_lite: give its layout in actor.megatron"),
    # Reference.
    own(
        f"{REF}.fsdp_config.param_offload",
        "algorithm.kl.offload",
        False,
        "where there is a KL term and no adapters",
        to.reference_offload,
    ),
    own(
        f"{REF}.megatron.param_offload",
        "algorithm.kl.offload",
        False,
        "where there is a KL term and no adapters",
        to.reference_offload,
    ),
    ignored(
        f"{REF}.log_prob_micro_batch_size_per_gpu",
        "passes for log-probabilities have micro-batches of the same size",
    ),
    ignored(f"{REF}.ulysses_sequence_parallel_size", "the reference has the trainer's layout"),
    own(
        f"{REF}.model.path",
        "",
        None,
        "the reference is model.path; another one is refused",
        to.reference,
    ),
    ignored(f"{REF}.*", "the reference has the trainer's layout and micro-batches"),
    # Rollout.
    only(f"{ROLLOUT}.name", "vllm", ("vllm",), "the engine is vLLM", "give vllm"),
    ignored(f"{ROLLOUT}.mode", "engines always answer one request after another", "async"),
    same(f"{ROLLOUT}.n", "rollout.group_size", 1, to=whole),
    same(f"{ROLLOUT}.temperature", "rollout.temperature", 1.0, to=real),
    only(f"{ROLLOUT}.top_p", 1, (1, 1.0), WHOLE, f"{WHOLE}; give 1"),
    only(f"{ROLLOUT}.top_k", -1, (-1, 0), WHOLE, f"{WHOLE}; give -1"),
    only(
        f"{ROLLOUT}.do_sample",
        True,
        (True,),
        "answers are drawn",
        "answers that train are drawn; give true",
    ),
    *(
        own(
            f"{ROLLOUT}.{kind}_length",
            "",
            None,
            f"it is data.max_{kind}_length; another one is refused",
            to.as_in_data(f"data.max_{kind}_length"),
        )
        for kind in ("prompt", "response")
    ),
    choice(
        f"{ROLLOUT}.dtype",
        "model.dtype",
        "bfloat16",
        {"bfloat16": "bfloat16", "float32": "float32"},
        "give bfloat16 or float32",
    ),
    noted(f"{ROLLOUT}.gpu_memory_utilization", "rollout.memory_fraction", 0.5, MEMORY, real),
    only(f"{ROLLOUT}.ignore_eos", False, (False,), "an answer ends at its end", "give false"),
    same(f"{ROLLOUT}.enforce_eager", "rollout.eager", False),
    ignored(f"{ROLLOUT}.free_cache_engine", TURNS, True),
    same(f"{ROLLOUT}.tensor_model_parallel_size", "rollout.tensor_parallel", 2, to=whole),
    only(
        f"{ROLLOUT}.pipeline_model_parallel_size",
        1,
        (1,),
        "one stage",
        "a replica has one stage; give 1",
    ),
    only(
        f"{ROLLOUT}.data_parallel_size",
        1,
        (1,),
        "replicas are rollout.replicas",
        "give 1: replicas of their own are as many, and fail one by one",
    ),
    own(f"{ROLLOUT}.expert_parallel_size", "", 1, to.EXPERTS_OF_A_REPLICA, to.rollout_experts),
    own(
        f"{ROLLOUT}.limit_images",
        "rollout.limit_images",
        None,
        "null: the default, 4",
        limit_images,
    ),
    same(f"{ROLLOUT}.max_num_seqs", "rollout.max_concurrency", 256, to=whole),
    ignored(f"{ROLLOUT}.max_num_batched_tokens", "vLLM's own default", 8192),
    own(
        f"{ROLLOUT}.max_model_len",
        "",
        None,
        LENGTHS,
        longest_sequence("data.max_prompt_length", "data.max_response_length"),
    ),
    ignored(f"{ROLLOUT}.enable_chunked_prefill", "vLLM's version 1 always does it", True),
    same(f"{ROLLOUT}.enable_prefix_caching", "rollout.prefix_cache", True, to=is_on),
    ignored(f"{ROLLOUT}.cudagraph_capture_sizes", "vLLM's own"),
    ignored(
        f"{ROLLOUT}.logprobs_mode", "log-probabilities are of the distribution that was drawn from"
    ),
    ignored(f"{ROLLOUT}.calculate_log_probs", "always", True),
    ignored(f"{ROLLOUT}.log_prob_micro_batch_size", "as below"),
    ignored(
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        "passes for log-probabilities have micro-batches of the same size",
    ),
    ignored(
        f"{ROLLOUT}.log_prob_use_dynamic_bsz", "trainer.micro_batch_tokens bounds tokens, always"
    ),
    ignored(
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
        "passes for log-probabilities have micro-batches of the same size",
    ),
    own(
        f"{ROLLOUT}.val_kwargs.n",
        "validation.samples, validation.final_samples, validation.temperature",
        1,
        "0 without do_sample, as one answer at temperature 0 is made anyway",
        to.validation_samples,
    ),
    part(f"{ROLLOUT}.val_kwargs.do_sample", f"{ROLLOUT}.val_kwargs.n", False),
    part(f"{ROLLOUT}.val_kwargs.temperature", f"{ROLLOUT}.val_kwargs.n", 0),
    own(
        f"{ROLLOUT}.val_kwargs.top_p",
        "validation.top_p",
        1.0,
        "of the samples",
        top_p_of_validation,
    ),
    own(
        f"{ROLLOUT}.val_kwargs.top_k",
        "",
        -1,
        "samples are drawn from all tokens",
        top_k_of_validation,
    ),
    only(f"{ROLLOUT}.multi_turn.enable", False, (False,), "one turn", TOOLS),
    ignored(f"{ROLLOUT}.multi_turn.*", "one turn"),
    only(f"{ROLLOUT}.agent.agent_loop_config_path", None, (None,), "not set", TOOLS),
    only(
        f"{ROLLOUT}.agent.default_agent_loop",
        "single_turn_agent",
        ("single_turn_agent", None),
        "one turn",
        "answers have one turn here, without tools; give single_turn_agent",
    ),
    ignored(f"{ROLLOUT}.agent.*", "there is one loop"),
    only(f"{ROLLOUT}.quantization", None, (None,), "none", "weights are not quantized here"),
    ignored(f"{ROLLOUT}.quantization_config_file", "none"),
    ignored(f"{ROLLOUT}.checkpoint_engine.*", "docs/weight-plane.md has how weights travel"),
    part(
        f"{ROLLOUT}.enable_rollout_routing_replay",
        f"{ACTOR}.router_replay.mode",
        False,
        "with router_replay.mode=R3; without it nobody reads the engine's choices",
    ),
    told(
        f"{ROLLOUT}.engine_kwargs.*", "options of vLLM are set here; rollout has those that matter"
    ),
    ignored(f"{ROLLOUT}.profiler.*", PROFILERS),
    ignored(
        f"{ROLLOUT}.prometheus.*", "every process has numbers for Prometheus: docs/observability.md"
    ),
    only(f"{ROLLOUT}.mtp.enable", False, (False,), "off", "no speculative decoding here"),
    ignored(f"{ROLLOUT}.mtp.*", "off"),
    *each(
        ROLLOUT,
        "disable_log_stats disaggregation.* layer_name_map.* layered_summon load_format"
        " moe_load_balance_metrics_interval multi_stage_wake_up n_gpus_per_node nnodes scheduling_policy"
        " skip_dump_dir skip_tokenizer_init trace.* full_determinism",
        HERE,
    ),
    ignored(f"{ROLLOUT}.seed", "each completion's seed follows from run.seed"),
    only(
        f"{ROLLOUT}.moe_tensor_parallel_size",
        None,
        (None, 1),
        "experts are split by rollout.tensor_parallel",
        "experts are split by rollout.tensor_parallel; leave it out",
    ),
    only(
        f"{ROLLOUT}.over_sample_rate",
        0,
        (0,),
        "none",
        "a batch waits for all of its groups; give 0",
    ),
    only(
        f"{ROLLOUT}.skip_rollout",
        False,
        (False,),
        "never",
        "answers are always generated; give false",
    ),
    ignored(f"{ROLLOUT}.qat.*", "weights are not quantized here"),
    # Model.
    own(f"{MODEL}.path", "model.path", None, "a folder", model_folder),
    only(
        f"{MODEL}.tokenizer_path",
        None,
        (None,),
        "not set",
        "the tokenizer is that of the model's folder; copy it there",
    ),
    only(
        f"{MODEL}.custom_chat_template",
        None,
        (None,),
        "not set",
        "write it into the chat_template of the model's folder",
    ),
    refused(f"{MODEL}.override_config.*", "write it into the model's config.json"),
    own(
        f"{MODEL}.enable_gradient_checkpointing",
        "trainer.recompute",
        True,
        "of the FSDP trainer",
        to.checkpointing,
    ),
    ignored(f"{MODEL}.enable_activation_offload", "trainer.recompute keeps fewer of them", False),
    own(f"{MODEL}.lora_rank", "trainer.lora", 0, "0: none", to.adapters),
    part(f"{MODEL}.lora_alpha", f"{MODEL}.lora_rank", 16),
    part(f"{MODEL}.target_modules", f"{MODEL}.lora_rank", "all-linear"),
    part(f"{MODEL}.lora.rank", f"{MODEL}.lora_rank", 0, "of Megatron's trainer"),
    part(f"{MODEL}.lora.alpha", f"{MODEL}.lora_rank", 32),
    part(
        f"{MODEL}.lora.target_modules",
        f"{MODEL}.lora_rank",
        ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
    ),
    own(
        f"{MODEL}.exclude_modules",
        "",
        None,
        f"{LANGUAGE_ALONE}. Other names are refused",
        excluded(to.has_adapters),
    ),
    only(
        f"{MODEL}.lora_adapter_path",
        None,
        (None,),
        "not set",
        "merge the adapters into the model first",
    ),
    only(f"{MODEL}.mtp.enable", False, (False,), "off", "no head for several tokens here"),
    *each(
        MODEL,
        "fused_kernel_options.* tiled_mlp.* trust_remote_code use_fused_kernels"
        " use_liger use_remove_padding use_shm",
        "the model is what its folder says; how it is computed follows from the device",
    ),
    only(
        f"{MODEL}.external_lib",
        None,
        (None,),
        "not set",
        "code of a module is not loaded for a model: leave it out, where the model's family is here"
        " (docs/architecture.md)",
    ),
    only(
        f"{MODEL}.hf_config_path",
        None,
        (None,),
        "not set",
        "the model is what the config.json of its folder says; put it there",
    ),
    *each(
        f"{MODEL}.mtp",
        "detach_encoder enable_rollout enable_train method mtp_loss_scaling_factor num_speculative_tokens"
        " speculative_algorithm speculative_eagle_topk speculative_num_draft_tokens speculative_num_steps",
        "off",
    ),
    *each(
        f"{MODEL}.lora",
        "a2a_experimental dropout_position dtype merge",
        "engines get the model with its adapters added; the rest of it does not train",
    ),
    own(
        f"{MODEL}.lora.lora_A_init_method",
        "",
        "xavier",
        f"{to.FIRST_A}; xavier and normal are noted, zero is refused",
        to.first_a,
    ),
    own(
        f"{MODEL}.lora.exclude_modules",
        "",
        None,
        f"{LANGUAGE_ALONE}. Other names are refused",
        excluded(to.has_adapters),
    ),
    only(
        f"{MODEL}.lora.lora_B_init_method",
        "zero",
        ("zero", "zeros", None),
        "the model begins as it is",
        "B begins at 0 here; give zero",
    ),
    *(
        only(
            f"{MODEL}.lora.{name}", True, (True,), "with adapters nothing else trains", NOTHING_ELSE
        )
        for name in ("freeze_language_model", "freeze_vision_model", "freeze_vision_projection")
    ),
    only(
        f"{MODEL}.lora.adapter_path",
        None,
        (None,),
        "not set",
        "adapters begin anew here; merge these into the model, or give null",
    ),
    only(
        f"{MODEL}.lora.type",
        "lora",
        ("lora", "vlm_lora", "canonical_lora"),
        "adapters are a product of two matrices",
        "adapters are a product of two matrices here; give lora",
    ),
    only(f"{MODEL}.lora.dropout", 0.0, (0, 0.0), "none", "adapters have no dropout here; give 0"),
    # The rest of the trainer.
    ignored("actor_rollout_ref.hybrid_engine", TURNS, True),
    ignored(
        "actor_rollout_ref.nccl_timeout", "trainer.step_timeout, weight_sync.stage_timeout", 600
    ),
    own(
        "trainer.total_epochs",
        "run.steps, run.epochs",
        30,
        "steps: x (rows // data.gen_batch_size, or data.train_batch_size where that is null); epochs where the rows"
        " cannot be counted at the import",
        lambda value, theirs: to.steps(theirs),
    ),
    part(
        "trainer.total_training_steps",
        "trainer.total_epochs",
        None,
        "run.steps, where total_epochs does not end before",
    ),
    same(
        "trainer.project_name",
        "metrics.project",
        "verl_examples",
        "other characters: `-`",
        project_name,
    ),
    own(
        "trainer.experiment_name",
        "run.name",
        "gsm8k",
        "letters, digits, `.`, `-` and `_`",
        run_name,
    ),
    own(
        "trainer.logger",
        "metrics.sinks",
        ["console", "wandb"],
        "wandb, or a sink of an installed package; console, file and tensorboard always",
        loggers,
    ),
    own(
        "trainer.n_gpus_per_node",
        "trainer.data_parallel, rollout.replicas",
        8,
        "x nnodes devices, which train and generate in turns there; here half of them trains and half"
        " generates, or with `run.pools=colocated` behind the file all do both in turns",
        to.layout,
    ),
    own(
        "trainer.nnodes",
        "",
        1,
        "above 1: network.subnet, and a launcher for several hosts (docs/deploy.md)",
        hosts,
    ),
    ignored("trainer.device", "trainer.device and rollout.device: auto", "cuda"),
    own(
        "trainer.save_freq",
        "run.checkpoint_every",
        -1,
        "-1: at the end alone",
        lambda value, theirs: every(value, "run.checkpoint_every", to.num_steps(theirs)),
    ),
    own(
        "trainer.max_actor_ckpt_to_keep",
        "run.keep_checkpoints",
        None,
        "null: all",
        to.kept_checkpoints,
    ),
    ignored("trainer.max_critic_ckpt_to_keep", NO_CRITIC),
    same(
        "trainer.default_local_dir",
        "run.checkpoints",
        None,
        "a folder that all hosts of the run see",
        lambda v: str(Path(str(v)).expanduser().absolute()),
    ),
    ignored("trainer.default_hdfs_dir", "run.checkpoints takes a bucket, s3://…"),
    ignored("trainer.del_local_ckpt_after_load", "run.keep_checkpoints", False),
    only(
        "trainer.resume_mode",
        "auto",
        ("auto", "disable"),
        "`trimaran train --resume RUN` goes on with a run",
        "their checkpoints are not read: merge one into a Hugging Face folder by `python -m"
        " verl.model_merger`, and give it as model.path",
    ),
    only("trainer.resume_from_path", None, (None,), "not set", "their checkpoints are not read"),
    own(
        "trainer.test_freq",
        "validation.every",
        -1,
        "-1: at the end alone",
        lambda value, theirs: every(value, "validation.every", to.num_steps(theirs)),
    ),
    same("trainer.val_before_train", "validation.before_train", True, to=is_on),
    own("trainer.val_only", "validation.only", False, VALIDATES_ONLY, validates_only),
    own("trainer.log_val_generations", "validation.logged", 0, LOGGED_TEXT, logged),
    ignored("trainer.validation_data_dir", "samples/ holds all answers to held-out prompts"),
    ignored("trainer.rollout_data_dir", "`trimaran samples` and the ledger have every group"),
    only("trainer.critic_warmup", 0, (0, 1), NO_CRITIC, NO_WARMUP),
    ignored("trainer.balance_batch", "micro-batches are always balanced over the ranks", True),
    only(
        "trainer.v1.trainer_mode",
        "sync",
        ("sync",),
        "run.max_lag is 0",
        "give sync, and set run.max_lag"
        " in the run: how many steps old a token's weights may be; generation and training then overlap",
    ),
    ignored("trainer.v1.*", "run.max_lag is 0"),
    *each(
        "trainer",
        "esi_redundant_time ray_wait_register_center_timeout use_legacy_worker_impl use_v1",
        "of Ray, or of their own program",
    ),
    # Rewards.
    own(
        "custom_reward_function.path",
        "reward.rules",
        None,
        "the function, called as it stands once"
        " `--allow` names it; without one the rules for the rows' data_source: openai/gsm8k → gsm8k,"
        " hiyouga/geometry3k → geo3k, MATH → boxed_equal, DAPO's and AIME → acc_for_dapo",
        to.reward,
    ),
    part("custom_reward_function.name", "custom_reward_function.path", "compute_score"),
    part(
        "custom_reward_function.reward_kwargs.*", "custom_reward_function.path", None, "its options"
    ),
    part(
        "reward.custom_reward_function.path", "custom_reward_function.path", None, "its newer name"
    ),
    part("reward.custom_reward_function.name", "custom_reward_function.path", "compute_score"),
    part("reward.custom_reward_function.reward_kwargs.*", "custom_reward_function.path", None),
    only(
        "reward_model.enable",
        False,
        (False, None),
        "rewards come from rules",
        "there is no reward model"
        " here; serve one over HTTP (docs/reward-plugins.md) and name it in reward.rules",
    ),
    only(
        "reward.reward_model.enable",
        False,
        (False, None),
        "rewards come from rules",
        "there is no reward"
        " model here; serve one over HTTP (docs/reward-plugins.md) and name it in reward.rules",
    ),
    *(
        own(
            key,
            "",
            "naive",
            "how calls are grouped follows from the function. One of the user's own is refused",
            to.manager,
        )
        for key in (
            "reward_model.reward_manager",
            "reward.reward_manager.name",
            "reward_manager.name",
        )
    ),
    *(
        only(key, None, (None, "register"), "one of theirs", OWN_MANAGER)
        for key in (
            "reward.reward_manager.source",
            "reward.reward_manager.module.path",
            "reward_manager.source",
            "reward_manager.module.path",
            "reward_model.reward_loop_source",
            "reward_model.reward_loop_module_path",
        )
    ),
    ignored("reward.reward_manager.*", "how calls are grouped follows from the function"),
    part(
        "reward_model.reward_kwargs.overlong_buffer_cfg.*",
        "custom_reward_function.path",
        None,
        "the rule overlong: len → buffer, penalty_factor → its weight",
    ),
    part("reward.reward_kwargs.overlong_buffer_cfg.*", "custom_reward_function.path"),
    part("reward_model.overlong_buffer.*", "custom_reward_function.path", None, "the same"),
    part(
        "reward_model.reward_kwargs.max_resp_len",
        "custom_reward_function.path",
        None,
        "max_tokens of the rule overlong; without it rollout.max_tokens",
    ),
    part("reward.reward_kwargs.max_resp_len", "custom_reward_function.path", None, "the same"),
    same("reward.num_workers", "reward.workers", None, to=whole),
    same("reward_model.num_workers", "reward.workers", None, to=whole),
    only(
        "reward_model.sandbox_fusion.url",
        None,
        (None,),
        "not set",
        "name it in reward.rules as a plugin with protocol: sandbox_fusion (docs/reward-code.md)",
    ),
    only(
        "reward.sandbox_fusion.url",
        None,
        (None,),
        "not set",
        "name it in reward.rules as a plugin with protocol: sandbox_fusion (docs/reward-code.md)",
    ),
    ignored("sandbox_fusion.*", "see reward.sandbox_fusion.url"),
    ignored("reward_manager.*", "how calls are grouped follows from the function"),
    *each(
        "reward_model",
        "enable_resource_pool forward_max_token_len_per_gpu launch_reward_fn_async load_weight max_length"
        " micro_batch_size micro_batch_size_per_gpu n_gpus_per_node nccl_timeout nnodes"
        " reward_loop_class_name strategy"
        " ulysses_sequence_parallel_size use_dynamic_bsz use_reward_loop megatron.* model.* profiler.*"
        " rollout.* sandbox_fusion.max_concurrent sandbox_fusion.memory_limit_mb",
        "rewards come from rules",
    ),
    *each(
        "reward.reward_model",
        "enable_resource_pool model_path n_gpus_per_node nnodes rollout.*",
        "rewards come from rules",
    ),
    *each("reward.sandbox_fusion", "max_concurrent memory_limit_mb", "rewards come from rules"),
    # Whole sections.
    ignored("critic.*", NO_CRITIC),
    only("distillation.enabled", False, (False,), "off", "there is no teacher here; give false"),
    ignored("distillation.*", "off"),
    ignored("global_profiler.*", PROFILERS),
    ignored("transfer_queue.*", "docs/architecture.md has how groups travel"),
    ignored("ray_kwargs.*", "`--launcher ray` runs on a Ray cluster that is there"),
    ignored("ray_init.*", "`--launcher ray` runs on a Ray cluster that is there"),
    ignored("skip.*", "nothing is skipped"),
    ignored("model_engine", MEGATRON),
    ignored(f"{ACTOR}.model_engine", MEGATRON),
)

VERL = System(
    "verl",
    "verl",
    ("actor_rollout_ref",),
    ROWS,
    # Without rollout_correction its loss does not look at the engine's log-probabilities.
    {"algorithm.correction.weights": "none"},
)
