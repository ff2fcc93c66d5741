"""verl's keys, of its examples and of DAPO's recipe. Their meaning and defaults: verl/trainer/config of
volcengine/verl (January 2026) and of verl-project/verl (August 2026), with the trainers FSDP and Megatron.

Sections that say how its program runs are ignored as a whole. What may change the mathematics has a row of its own; a
key of these sections without one is unknown, and stops the import.
"""

from __future__ import annotations

from commands.importing import shared
from commands.importing import verl_conversions as to
from commands.importing import verl_turns as turns
from commands.importing.conversion import SourceSystem
from commands.importing.rows import (
    KeyRow,
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
    under,
)
from commands.importing.verl_conversions import ACTOR, MCORE, MODEL, REF, ROLLOUT, TRANSFORMER
from commands.importing.verl_rewards import FUNCTION, reward

KWARGS = "data.chat_template_kwargs"
FLOAT32 = ("fp32", "float32", "torch.float32")
ADAMW = "the optimizer is AdamW, in full precision, with optim's lr and weight_decay"
MERGED = "merge the adapters into the model first"
NOT_QUANTIZED = "weights are not quantized here: give false"
OFF = "it belongs to what is off"
NO_BIAS = "a router has no bias here that follows its load"
OTHER_TRAINER = "of another trainer of theirs: give the keys of FSDP or Megatron"
OWN_REWARD = "a reward is a function here, as custom_reward_function names it: write the manager's sum of scores into one"
MANAGERS = ("naive", "dapo", "batch", "prime", "gdpo", "rate_limited", "remote")
"""Theirs, which differ in how they call a function, not in what it gives."""
STAGES = "give trainer.pipeline_layers in the run, a number of layers for each stage"
GRADIENTS = "ranks add their gradients up in float32"
RECOMPUTED = {"full": True, "selective": "selective"}
"""Their granularity of it -> ours."""
BALANCED = "taken over the packed tokens of a micro-batch"
NO_CHECKPOINT = (
    "their checkpoints are not read: merge one into a Hugging Face folder by `python -m verl.model_merger`, and give"
    " it as model.path"
)
REFERENCE = (
    "the reference is model.path, with which a run begins: give that, and set trainer.load in the run to a checkpoint"
    " with which it begins (`trimaran convert MODEL CHECKPOINT` makes one)"
)

DATA = under(
    "data",
    own("train_files", None, shared.training_file("data.train_files")),
    own("val_files", None, shared.validation_file("trainer.test_freq")),
    own("prompt_key", "prompt", to.columns),
    same("max_prompt_length", "rollout.max_prompt_tokens", 512, int),
    same("max_response_length", "rollout.max_tokens", 512, int),
    own("train_batch_size", 1024, to.batch),
    *parts({"gen_batch_size": None}),
    own("train_max_samples", -1, to.most_rows),
    own("val_max_samples", -1, to.most_validated),
    same("shuffle", "data.shuffle", True),
    same("seed", "run.seed", None, int),
    own("truncation", "error", to.truncation),
    own("image_key", "images", to.images),
    same("apply_chat_template_kwargs.enable_thinking", f"{KWARGS}.enable_thinking", None, is_on),
    same("apply_chat_template_kwargs.reasoning_effort", f"{KWARGS}.reasoning_effort", None, str),
    refused("tokenizer", shared.FOLDER),
    refused("custom_cls.path", "an installed package reads other files: docs/extending.md"),
    refused("sampler.class_path", "the order is that of the rows, or data.shuffle's"),
    *ignored(
        "val_batch_size filter_overlong_prompts filter_overlong_prompts_workers custom_cls.name sampler.class_name"
        " dataloader_num_workers return_raw_chat return_raw_input_ids return_full_prompt return_multi_modal_inputs",
        shared.ROWS_OF_FILE,
    ),
    *ignored("image_patch_size trust_remote_code", shared.FOLDER),
    *ignored("padding_mode", shared.PADDING),
)

ALGORITHM = under(
    "algorithm",
    own("adv_estimator", "gae", to.advantage),
    *parts({"norm_adv_by_std_in_grpo": True, "use_kl_in_reward": False, "kl_penalty": "kl"}),
    *parts({"kl_ctrl.kl_coef": 0.001}),
    only("kl_ctrl.type", ("fixed",), "give fixed, and set algorithm.kl.adaptive in the run"),
    refused("gdpo_reward_keys", "give each of these scores a rule of its own in reward.rules"),
    only("gamma", (1.0,), shared.NO_DISCOUNT),
    own("rollout_correction.rollout_is", None, to.correction),
    own("rollout_correction.rollout_is_threshold", 2.0, to.correction_bounds),
    *parts({"rollout_correction.bypass_mode": False}),
    refused(
        "rollout_correction.rollout_rs",
        "algorithm.correction.token_bounds and geometric_bounds leave tokens or completions out: give null, and set"
        " one of them in the run",
    ),
    only("rollout_correction.loss_type", ("ppo_clip",), "give ppo_clip"),
    only(
        "rollout_correction.rollout_is_batch_normalize",
        (False,),
        "weights are not normalized: give false",
    ),
    own("filter_groups.enable", False, to.filtering),
    *parts({"filter_groups.metric": None, "filter_groups.max_num_gen_batches": 0}),
    only("use_pf_ppo", (False,), "give false"),
    *ignored("lam", "of gae alone"),
    *ignored("rollout_correction.rollout_rs_threshold pf_ppo.*", OFF),
)

LOSS = under(
    ACTOR,
    own("ppo_mini_batch_size", 256, to.updates),
    own("use_dynamic_bsz", False, to.micro_batch),
    *parts({"ppo_micro_batch_size_per_gpu": None, "ppo_max_token_len_per_gpu": 16384}),
    same("ppo_epochs", "algorithm.epochs", 1, int),
    same("shuffle", "algorithm.shuffle", False),
    own(
        "policy_loss.loss_mode",
        "vanilla",
        shared.loss(to.LOSSES, to.LOSS_TYPES, ACTOR, {}),
    ),
    *parts({"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}),
    noted("clip_ratio", "clip_ratio_low and clip_ratio_high go before it, as there"),
    *parts({"tau_pos": 1.0, "tau_neg": 1.05}),
    *parts({"policy_loss.clip_cov_ratio": 2e-4, "policy_loss.clip_cov_lb": 1.0}),
    *parts({"policy_loss.clip_cov_ub": 5.0}),
    *parts({"policy_loss.kl_cov_ratio": 2e-4, "policy_loss.ppo_kl_coef": 0.1}),
    own("loss_agg_mode", "token-mean", to.aggregation),
    same("entropy_coeff", "algorithm.entropy.coefficient", 0, float),
    own("use_kl_loss", False, to.kl),
    *parts({"kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl"}),
    noted("policy_loss.tau_pos", f"their program does not read it: give {ACTOR}.tau_pos"),
    noted("policy_loss.tau_neg", f"their program does not read it: give {ACTOR}.tau_neg"),
)

OPTIMIZER = under(
    f"{ACTOR}.optim",
    same("lr", "trainer.learning_rate", 1e-6, float),
    same("weight_decay", "trainer.weight_decay", 0.01, float),
    *parts({"clip_grad": 1.0, "lr_warmup_steps_ratio": 0.0}),
    own("lr_warmup_steps", -1, to.warmup),
    own("lr_scheduler_type", "constant", shared.schedule("constant", "cosine")),
    own("lr_decay_style", None, shared.schedule("constant", "cosine", "linear")),
    own("min_lr_ratio", 0.0, to.least_rate),
    same("min_lr", "trainer.min_learning_rate", None, float),
    only("optimizer", ("AdamW", "adam", "Adam"), ADAMW),
    only("main_grads_dtype", FLOAT32, f"{ADAMW}: give float32"),
    only("exp_avg_dtype", FLOAT32, f"{ADAMW}: give float32"),
    only("exp_avg_sq_dtype", FLOAT32, f"{ADAMW}: give float32"),
    *ignored(
        "override_optimizer_config.optimizer_cpu_offload override_optimizer_config.optimizer_offload_fraction"
        " override_optimizer_config.offload_fraction override_optimizer_config.overlap_cpu_optimizer_d2h_h2d"
        " override_optimizer_config.use_precision_aware_optimizer use_precision_aware_optimizer",
        "trainer.offload says where the optimizer is; its result is the same",
    ),
    *ignored(
        "total_training_steps use_layer_wise_distributed_optimizer muon_coefficient_type muon_extra_scale_factor"
        " muon_fp32_matmul_prec muon_match_adamw_update_rms muon_momentum muon_nesterov muon_num_ns_steps"
        " muon_scalar_optimizer muon_scale_mode muon_split_qkv muon_tp_mode",
        "the optimizer is AdamW, and trainer.schedule its schedule from the first step to run.steps",
    ),
)

TRAINER = under(
    ACTOR,
    own("grad_clip", 1.0, to.clip),
    *parts({"strategy": "fsdp", "ulysses_sequence_parallel_size": 1}),
    own("fsdp_config.optimizer_offload", False, to.offload),
    switch("freeze_vision_tower", "trainer.freeze", ["*visual.*"]),
    switch("fsdp_config.full_determinism", "run.deterministic", True),
    own("router_replay.mode", "disabled", to.replay),
    own("fsdp_config.dtype", "bfloat16", to.computed_in),
    own("fsdp_config.mixed_precision.param_dtype", "bfloat16", to.computed_in),
    own("fsdp_config.mixed_precision.reduce_dtype", None, shared.in_float32(GRADIENTS)),
    own("fsdp_config.model_dtype", "fp32", shared.in_float32(shared.MAIN_WEIGHTS)),
    only("fsdp_config.qat.enable", (False, None), NOT_QUANTIZED),
    refused("engine.*", OTHER_TRAINER),
    *ignored("fsdp_config.* veomni.* model_engine", shared.LAYOUT),
    *ignored("fsdp_config.param_offload", shared.TURNS),
    *ignored("checkpoint.*", "a checkpoint holds all that a resume needs"),
    *ignored("profiler.* calculate_sum_pi_squared", shared.REPORTS),
    *ignored("ppo_micro_batch_size use_prefix_grouper", shared.LIMIT),
    *ignored("use_remove_padding pad_to_length", shared.PADDING),
    *ignored(
        "use_torch_compile entropy_from_logits_with_chunking entropy_checkpointing", shared.DEVICE
    ),
)

MEGATRON = under(
    MCORE,
    *parts({"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}),
    *parts({"context_parallel_size": 1, "expert_model_parallel_size": 1}),
    *parts({"expert_tensor_parallel_size": None}),
    only("sequence_parallel", (True,), "tensor-parallel ranks share the sequence: give true"),
    own("optimizer_offload", False, to.offload),
    own("grad_offload", False, to.offload),
    same("virtual_pipeline_model_parallel_size", "trainer.virtual_stages", None, shared.above(1)),
    own("router_replay.mode", "disabled", to.replay),
    own("dtype", "bfloat16", to.computed_in),
    only("qat.enable", (False, None), NOT_QUANTIZED),
    refused("override_mcore_model_config.*", f"{shared.FOLDER}: write it into its config.json"),
    *ignored("*", shared.LAYOUT),
    *ignored("param_offload", shared.TURNS),
)

LAYERS = under(
    TRANSFORMER,
    same("recompute_granularity", "trainer.recompute", None, RECOMPUTED.get),
    same("moe_aux_loss_coeff", "trainer.router.load_balancing", None, float, BALANCED),
    same("moe_z_loss_coeff", "trainer.router.z_loss", None, float),
    noted("moe_router_dtype", "a router's scores are in model.dtype here"),
    noted("moe_router_load_balancing_type", "trainer.router has two losses on routers"),
    noted("moe_router_bias_update_rate", NO_BIAS),
    noted("moe_router_enable_expert_bias", NO_BIAS),
    noted("pipeline_model_parallel_layout", STAGES),
    noted("num_layers_in_first_pipeline_stage", STAGES),
    noted("num_layers_in_last_pipeline_stage", STAGES),
    refused("*", "it may change what is computed: leave it out where it changes speed alone"),
    *ignored(
        "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split apply_dsa_kernel_fusion"
        " apply_rope_fusion attention_backend bias_activation_fusion bias_dropout_fusion context_parallel_algo"
        " context_parallel_size cp_partition_mode deallocate_pipeline_outputs dsa_indexer_loss_coeff"
        " dsa_indexer_use_sparse_loss gradient_accumulation_fusion masked_softmax_fusion"
        " max_seqlen_per_dp_cp_rank moe_enable_deepep moe_grouped_gemm moe_permute_fusion"
        " moe_shared_expert_overlap moe_token_dispatcher_type normalization persist_layer_norm"
        " recompute_method recompute_modules recompute_num_layers sequence_packing_scheduler"
        " sequence_parallel swiglu use_ascend_gdn use_distributed_optimizer use_flash_attn use_fused_mhc"
        " use_fused_rmsnorm use_fused_swiglu use_naive_l2norm use_triton_gdn",
        shared.DEVICE,
    ),
)

THE_REFERENCE = under(
    REF,
    own("fsdp_config.param_offload", False, to.reference_offload),
    own("megatron.param_offload", False, to.reference_offload),
    refused("model.path", REFERENCE),
    *ignored("*", "the reference has the trainer's layout and micro-batches"),
)

GENERATION = under(
    ROLLOUT,
    only("name", ("vllm",), "the engine is vLLM: give vllm"),
    same("n", "rollout.group_size", 1, int),
    same("temperature", "rollout.temperature", 1.0, float),
    only("top_p", (1,), f"{shared.WHOLE}1"),
    only("top_k", (-1, 0), f"{shared.WHOLE}-1"),
    only("do_sample", (True,), "answers that train are drawn: give true"),
    only("ignore_eos", (False,), "an answer ends at its end: give false"),
    own("prompt_length", None, to.as_in_data("data.max_prompt_length")),
    own("response_length", None, to.as_in_data("data.max_response_length")),
    own(
        "max_model_len",
        None,
        shared.longest_sequence("data.max_prompt_length", "data.max_response_length"),
    ),
    choice("dtype", "model.dtype", "bfloat16", {name: name for name in ("bfloat16", "float32")}),
    same("gpu_memory_utilization", "rollout.memory_fraction", 0.5, float, shared.MEMORY),
    same("enforce_eager", "rollout.eager", False),
    same("tensor_model_parallel_size", "rollout.tensor_parallel", 2, int),
    only("data_parallel_size", (1,), "give 1: rollout.replicas fail one by one"),
    same("limit_images", "rollout.limit_images", None, shared.above(0)),
    same("max_num_seqs", "rollout.max_concurrency", 256, int),
    same("enable_prefix_caching", "rollout.prefix_cache", True, is_on),
    own("val_kwargs.n", 1, to.validation_samples),
    *parts({"val_kwargs.do_sample": False, "val_kwargs.temperature": 0}),
    same("val_kwargs.top_p", "validation.top_p", 1.0, shared.below_1),
    only("val_kwargs.top_k", (-1, 0), "samples are drawn from all tokens: give -1"),
    *parts({"enable_rollout_routing_replay": False}),
    only("qat.enable", (False, None), NOT_QUANTIZED),
    only("over_sample_rate", (0,), "a batch waits for all of its groups: give 0"),
    noted("engine_kwargs.*", "options of vLLM are set here; rollout has those that matter"),
    *ignored("qat.*", OFF),
    *ignored(
        "expert_parallel_size moe_tensor_parallel_size",
        "experts of a replica are split by rollout.tensor_parallel alone",
    ),
    *ignored("free_cache_engine layered_summon multi_stage_wake_up", shared.TURNS),
    *ignored(
        "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz"
        " log_prob_max_token_len_per_gpu",
        shared.LIMIT,
    ),
    *ignored(
        "calculate_log_probs checkpoint_engine.* cudagraph_capture_sizes disable_log_stats enable_chunked_prefill"
        " load_format max_num_batched_tokens mode skip_tokenizer_init",
        shared.ENGINE,
    ),
    *ignored("prometheus.* trace.*", shared.REPORTS),
    own("multi_turn.enable", False, turns.enable),
    *parts({"multi_turn.tool_config_path": None, "multi_turn.max_tool_response_length": 256}),
    *parts({"multi_turn.max_assistant_turns": None, "multi_turn.max_user_turns": None}),
    only("agent.default_agent_loop", ("single_turn_agent", "tool_agent"), turns.OWN_LOOP),
    refused("multi_turn.interaction_config_path", turns.OWN_LOOP),
    refused("agent.agent_loop_config_path", turns.OWN_LOOP),
    *ignored("multi_turn.format", "calls are read in the form that the chat template asks for"),
    *ignored("agent.num_workers", "the controller drives episodes"),
)

THE_MODEL = under(
    MODEL,
    own("path", None, shared.model_folder),
    refused("custom_chat_template", f"{shared.FOLDER}: put it there"),
    refused("override_config.*", f"{shared.FOLDER}: put it there"),
    refused("external_lib", "code of a module is not loaded for a model: leave it out"),
    only("mtp.enable", (False,), "no head for several tokens here: give false"),
    own("enable_gradient_checkpointing", True, to.checkpointing),
    own("lora_rank", 0, to.adapters),
    *parts({"lora_alpha": 16, "target_modules": "all-linear", "lora.rank": 0, "lora.alpha": 32}),
    *parts({"lora.target_modules": list(shared.FUSED_TARGETS)}),
    own("exclude_modules", None, shared.excluded),
    refused("lora_adapter_path", MERGED),
    only("lora.type", ("lora", "vlm_lora", "canonical_lora"), "give lora: two matrices"),
    only("lora.dropout", (0.0,), "adapters have no dropout here: give 0"),
    *ignored("lora.lora_A_init_method", "A begins uniform within 1 / sqrt(its inputs)"),
    *ignored("lora.dropout_position", OFF),
    *ignored(
        "mtp.* fused_kernel_options.* trust_remote_code use_fused_kernels use_remove_padding use_shm"
        " enable_activation_offload",
        shared.DEVICE,
    ),
)

THE_RUN: tuple[KeyRow, ...] = (
    *shared.run_rows(
        to.steps,
        30,
        "verl_examples",
        "gsm8k",
        "test_freq",
        "max_actor_ckpt_to_keep",
        "default_local_dir",
        "log_val_generations",
    ),
    *under(
        "trainer",
        *parts({"total_training_steps": None}),
        own("n_gpus_per_node", 8, to.layout),
        only("resume_mode", ("auto", "disable"), NO_CHECKPOINT),
        refused("resume_from_path", NO_CHECKPOINT),
        only("v1.trainer_mode", ("sync",), "give sync, and set run.max_lag in the run"),
        *ignored("max_critic_ckpt_to_keep", shared.NO_CRITIC),
        *ignored(
            "balance_batch default_hdfs_dir device use_legacy_worker_impl",
            "it says how their program runs; docs/operations.md has how ours does",
        ),
    ),
    refused("actor@actor_rollout_ref.actor", OTHER_TRAINER),
    *ignored("actor_rollout_ref.hybrid_engine actor_rollout_ref.nccl_timeout", shared.TURNS),
    *ignored("critic.*", shared.NO_CRITIC),
    *ignored("global_profiler.*", shared.REPORTS),
    *ignored("ray_kwargs.* model_engine", "--launcher ray uses a Ray cluster"),
    only("distillation.enabled", (False,), "there is no teacher here: give false"),
)

REWARDS = under(
    "reward",
    *parts({"reward_kwargs.max_resp_len": None, "reward_kwargs.overlong_buffer_cfg.len": None}),
    *parts({"reward_kwargs.overlong_buffer_cfg.enable": False}),
    *parts({"reward_kwargs.overlong_buffer_cfg.penalty_factor": 1.0}),
    *ignored("reward_kwargs.overlong_buffer_cfg.log", shared.REPORTS),
    own("custom_reward_function.path", None, reward),
    *parts({"custom_reward_function.name": "compute_score"}),
    *parts({"custom_reward_function.reward_kwargs.*": None}),
    only("reward_model.enable", (False,), shared.NO_MODEL),
    only("reward_manager.name", MANAGERS, f"{OWN_REWARD}, and give one of {', '.join(MANAGERS)}"),
    same("num_workers", "reward.workers", None, int),
    refused(
        "sandbox_fusion.url",
        "name it in reward.rules as a plugin with protocol: sandbox_fusion (docs/reward-code.md)",
    ),
    *ignored("reward_model.* sandbox_fusion.*", "rewards come from rules"),
)

VERL = SourceSystem(
    "verl",
    "verl",
    ("actor_rollout_ref",),
    (
        *DATA,
        *ALGORITHM,
        *LOSS,
        *OPTIMIZER,
        *TRAINER,
        *MEGATRON,
        *LAYERS,
        *THE_REFERENCE,
        *GENERATION,
        *THE_MODEL,
        *THE_RUN,
        *REWARDS,
    ),
    # Without rollout_correction its loss does not look at the engine's log-probabilities.
    {"algorithm.correction.weights": "none", "trainer.beta1": 0.9, "trainer.beta2": 0.999},
    # Names of before 2026, which go before the newer ones there.
    {
        "custom_reward_function": FUNCTION,
        "reward_model.reward_kwargs": "reward.reward_kwargs",
        "reward_model.reward_manager": "reward.reward_manager.name",
        "reward_model.num_workers": "reward.num_workers",
        "reward_model.sandbox_fusion": "reward.sandbox_fusion",
        "reward_model": "reward.reward_model",
    },
)
