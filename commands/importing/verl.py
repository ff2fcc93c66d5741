"""verl's keys. Their meaning and defaults: verl/trainer/config of volcengine/verl (January 2026) and of
verl-project/verl (August 2026), with the trainers FSDP and Megatron.

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
)
from commands.importing.verl_conversions import ACTOR, MCORE, MODEL, REF, ROLLOUT, TRANSFORMER
from commands.importing.verl_turns import AGENT, TURNS

OPTIM, LORA = f"{ACTOR}.optim", f"{MODEL}.lora"
CORRECTION = "algorithm.rollout_correction"
KWARGS = "data.chat_template_kwargs"
ADAMW = "the optimizer is AdamW, in full precision, with optim's lr, weight_decay and betas"
FIXED = "with adapters nothing else trains here: give true"
NOT_QUANTIZED = "weights are not quantized here: give false"
OFF = "it belongs to what is off"
NO_BIAS = "a router has no bias here that follows its load"
OWN_REWARD = "a reward is a function here, as custom_reward_function names it: write the manager's sum of scores into one"
STAGES = "give trainer.pipeline_layers in the run, a number of layers for each stage"
NO_CHECKPOINT = (
    "their checkpoints are not read: merge one into a Hugging Face folder by `python -m verl.model_merger`, and give"
    " it as model.path"
)

DATA: tuple[KeyRow, ...] = (
    own("data.train_files", None, shared.data_file("data.train", "data.train_files")),
    own("data.val_files", None, to.validation),
    own("data.prompt_key", "prompt", to.columns),
    own("data.reward_fn_key", "data_source", to.source_column),
    same("data.max_prompt_length", "rollout.max_prompt_tokens", 512, int),
    same("data.max_response_length", "rollout.max_tokens", 512, int),
    own("data.train_batch_size", 1024, to.batch),
    *parts("data", {"gen_batch_size": None}),
    own("data.train_max_samples", -1, to.most_rows),
    own("data.val_max_samples", -1, to.most_validated),
    same("data.shuffle", "data.shuffle", True),
    same("data.seed", "run.seed", None, int),
    own("data.truncation", "error", to.truncation),
    own("data.image_key", "images", to.images),
    noted("data.mm_processor_kwargs.*", "images are scaled by data.min_pixels and data.max_pixels"),
    same(
        "data.apply_chat_template_kwargs.enable_thinking", f"{KWARGS}.enable_thinking", None, is_on
    ),
    same(
        "data.apply_chat_template_kwargs.reasoning_effort", f"{KWARGS}.reasoning_effort", None, str
    ),
    refused("data.apply_chat_template_kwargs.*", f"leave it out, and give the run {KWARGS}"),
    refused("data.tokenizer", shared.FOLDER),
    refused("data.custom_cls.path", "an installed package reads other files: docs/extending.md"),
    refused("data.sampler.class_path", "the order is that of the rows, or data.shuffle's"),
    refused("data.datagen.path", "rows are those of the file: write them before the run"),
    *(
        own(f"data.{name}", None, turns.as_in_turns(name))
        for name in (turns.CONFIGURED, turns.FUNCTIONS)
    ),
    *ignored(
        "data",
        "val_batch_size validation_shuffle filter_overlong_prompts filter_overlong_prompts_workers"
        " custom_cls.name sampler.class_name datagen.* use_shm dataloader_num_workers return_raw_chat"
        " return_raw_input_ids return_full_prompt return_multi_modal_inputs",
        shared.ROWS_OF_FILE,
    ),
    *ignored("data", "video_key audio_key", "no model here takes videos or sounds"),
    *ignored("data", "image_patch_size trust_remote_code", shared.FOLDER),
    *ignored("data", "padding_mode", shared.PADDING),
)

ALGORITHM: tuple[KeyRow, ...] = (
    own("algorithm.adv_estimator", "gae", to.advantage),
    *parts(
        "algorithm",
        {
            "norm_adv_by_std_in_grpo": True,
            "use_kl_in_reward": False,
            "kl_penalty": "kl",
            "kl_ctrl.type": "fixed",
            "kl_ctrl.kl_coef": 0.001,
            "kl_ctrl.horizon": 10000,
            "kl_ctrl.target_kl": 0.1,
            "filter_groups.metric": None,
            "filter_groups.max_num_gen_batches": 0,
            "rollout_correction.bypass_mode": False,
        },
    ),
    refused(
        "algorithm.gdpo_reward_keys", "give each of these scores a rule of its own in reward.rules"
    ),
    only("algorithm.gamma", (1.0,), "there is no discount here: give 1"),
    own(f"{CORRECTION}.rollout_is", None, to.correction),
    own(f"{CORRECTION}.rollout_is_threshold", 2.0, to.correction_bounds),
    refused(
        f"{CORRECTION}.rollout_rs",
        "algorithm.correction.token_bounds and geometric_bounds leave tokens or completions out: give null, and set"
        " one of them in the run",
    ),
    only(f"{CORRECTION}.loss_type", ("ppo_clip",), "give ppo_clip"),
    only(
        f"{CORRECTION}.rollout_is_batch_normalize",
        (False,),
        "weights are not normalized: give false",
    ),
    own("algorithm.filter_groups.enable", False, to.filtering),
    only("algorithm.use_pf_ppo", (False,), "give false"),
    *ignored("algorithm", "lam", "of gae alone"),
    *ignored("algorithm", "rollout_correction.rollout_rs_threshold pf_ppo.*", OFF),
    *ignored("algorithm", "filter_groups.max_inflight_gen_batches", shared.GROUPS),
)

LOSS: tuple[KeyRow, ...] = (
    own(f"{ACTOR}.ppo_mini_batch_size", 256, to.updates),
    own(f"{ACTOR}.use_dynamic_bsz", False, to.micro_batch),
    same(f"{ACTOR}.ppo_epochs", "algorithm.epochs", 1, int),
    same(f"{ACTOR}.shuffle", "algorithm.shuffle", False),
    own(f"{ACTOR}.policy_loss.loss_mode", "vanilla", to.loss),
    own(f"{ACTOR}.loss_agg_mode", "token-mean", to.aggregation),
    same(f"{ACTOR}.entropy_coeff", "algorithm.entropy.coefficient", 0, float),
    same(f"{ACTOR}.calculate_entropy", "algorithm.entropy.exact", False),
    own(f"{ACTOR}.use_kl_loss", False, to.kl),
    *parts(
        ACTOR,
        {
            "ppo_micro_batch_size_per_gpu": None,
            "ppo_max_token_len_per_gpu": 16384,
            "clip_ratio": 0.2,
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.2,
            "clip_ratio_c": 3.0,
            "tau_pos": 1.0,
            "tau_neg": 1.05,
            "policy_loss.clip_cov_ratio": 2e-4,
            "policy_loss.clip_cov_lb": 1.0,
            "policy_loss.clip_cov_ub": 5.0,
            "policy_loss.kl_cov_ratio": 2e-4,
            "policy_loss.ppo_kl_coef": 0.1,
            "loss_scale_factor": None,
            "kl_loss_coef": 0.001,
            "kl_loss_type": "low_var_kl",
        },
    ),
    noted(f"{ACTOR}.policy_loss.tau_pos", f"their program does not read it: give {ACTOR}.tau_pos"),
    noted(f"{ACTOR}.policy_loss.tau_neg", f"their program does not read it: give {ACTOR}.tau_neg"),
    *ignored(ACTOR, "policy_loss.dro_beta", OFF),
)

OPTIMIZER: tuple[KeyRow, ...] = (
    own(f"{ACTOR}.grad_clip", 1.0, to.clip),
    *parts(OPTIM, {"clip_grad": 1.0, "lr_warmup_steps_ratio": 0.0}),
    same(f"{OPTIM}.lr", "trainer.learning_rate", 1e-6, float),
    same(f"{OPTIM}.weight_decay", "trainer.weight_decay", 0.01, float),
    own(f"{OPTIM}.betas", [0.9, 0.999], to.betas),
    own(f"{OPTIM}.lr_warmup_steps", -1, to.warmup),
    own(f"{OPTIM}.lr_scheduler_type", "constant", shared.schedule("constant", "cosine")),
    own(f"{OPTIM}.warmup_style", None, shared.schedule("constant", "cosine")),
    own(f"{OPTIM}.lr_decay_style", None, shared.schedule("constant", "cosine", "linear")),
    own(f"{OPTIM}.min_lr_ratio", 0.0, shared.least_rate(f"{OPTIM}.lr")),
    same(f"{OPTIM}.min_lr", "trainer.min_learning_rate", None, float),
    refused(
        f"{OPTIM}.lr_decay_steps", "a rate that falls has its least value at run.steps: give null"
    ),
    only(
        f"{OPTIM}.num_cycles",
        (0.5,),
        "the rate falls once, from the greatest to the least: give 0.5",
    ),
    only(f"{OPTIM}.lr_warmup_init", (0.0,), "a warm-up begins at 0 here: give 0"),
    only(
        f"{OPTIM}.weight_decay_incr_style",
        ("constant",),
        "the decay holds in each step: give constant",
    ),
    only(f"{OPTIM}.optimizer", ("AdamW", "adam", "Adam"), ADAMW),
    only(f"{OPTIM}.optimizer_impl", ("torch.optim",), f"{ADAMW}: give torch.optim"),
    *(
        only(f"{OPTIM}.{name}", ("fp32", "float32", "torch.float32"), f"{ADAMW}: give float32")
        for name in ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    ),
    only(
        f"{OPTIM}.override_optimizer_config.decoupled_weight_decay", (True,), f"{ADAMW}: give true"
    ),
    refused(f"{OPTIM}.override_optimizer_config.*", f"{ADAMW}: leave it out"),
    *ignored(
        f"{OPTIM}.override_optimizer_config",
        "optimizer_cpu_offload optimizer_offload_fraction offload_fraction overlap_cpu_optimizer_d2h_h2d"
        " use_precision_aware_optimizer",
        "trainer.offload says where the optimizer is; its result is the same",
    ),
    *ignored(
        OPTIM,
        "zero_indexed_step lr_wsd_decay_steps lr_wsd_decay_style total_training_steps"
        " use_checkpoint_opt_param_scheduler use_precision_aware_optimizer use_layer_wise_distributed_optimizer"
        " use_layer_wise_param_layout muon_coefficient_type muon_extra_scale_factor muon_fp32_matmul_prec"
        " muon_match_adamw_update_rms muon_momentum muon_nesterov muon_num_ns_steps muon_scalar_optimizer"
        " muon_scale_mode muon_split_qkv muon_tp_mode",
        "the optimizer is AdamW, and trainer.schedule its schedule from the first step to run.steps",
    ),
)

TRAINER: tuple[KeyRow, ...] = (
    *parts(ACTOR, {"strategy": "fsdp", "ulysses_sequence_parallel_size": 1}),
    *parts(
        MCORE,
        {
            "tensor_model_parallel_size": 1,
            "pipeline_model_parallel_size": 1,
            "context_parallel_size": 1,
            "expert_model_parallel_size": 1,
            "expert_tensor_parallel_size": None,
            "sequence_parallel": True,
        },
    ),
    own(f"{ACTOR}.fsdp_config.optimizer_offload", False, to.offload),
    own(f"{MCORE}.optimizer_offload", False, to.offload),
    own(f"{MCORE}.grad_offload", False, to.offload),
    own(f"{MCORE}.virtual_pipeline_model_parallel_size", None, to.virtual),
    own(f"{TRANSFORMER}.recompute_granularity", None, to.recompute),
    same(
        f"{TRANSFORMER}.moe_aux_loss_coeff",
        "trainer.router.load_balancing",
        None,
        float,
        to.BALANCED,
    ),
    same(f"{TRANSFORMER}.moe_z_loss_coeff", "trainer.router.z_loss", None, float),
    noted(f"{TRANSFORMER}.moe_router_dtype", "a router's scores are in model.dtype here"),
    noted(
        f"{TRANSFORMER}.moe_router_load_balancing_type", "trainer.router has two losses on routers"
    ),
    noted(f"{TRANSFORMER}.moe_router_bias_update_rate", NO_BIAS),
    noted(f"{TRANSFORMER}.moe_router_enable_expert_bias", NO_BIAS),
    noted(f"{TRANSFORMER}.pipeline_model_parallel_layout", STAGES),
    noted(f"{TRANSFORMER}.num_layers_in_first_pipeline_stage", STAGES),
    noted(f"{TRANSFORMER}.num_layers_in_last_pipeline_stage", STAGES),
    switch(f"{ACTOR}.freeze_vision_tower", "trainer.freeze", ["*visual.*"]),
    switch(f"{ACTOR}.fsdp_config.full_determinism", "run.deterministic", True),
    own(f"{ACTOR}.router_replay.mode", "disabled", to.replay),
    own(f"{MCORE}.router_replay.mode", "disabled", to.replay),
    *(
        own(f"{ACTOR}.{key}", "bfloat16", shared.computed_in(f"{ROLLOUT}.dtype"))
        for key in (
            "fsdp_config.dtype",
            "fsdp_config.mixed_precision.param_dtype",
            "megatron.dtype",
        )
    ),
    own(f"{ACTOR}.fsdp_config.model_dtype", "fp32", shared.in_float32(shared.MAIN_WEIGHTS)),
    own(
        f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype",
        None,
        shared.in_float32(shared.GRADIENTS),
    ),
    *(
        only(f"{key}.qat.enable", (False, None), NOT_QUANTIZED)
        for key in (ACTOR, f"{ACTOR}.fsdp_config", MCORE, ROLLOUT)
    ),
    only(f"{ACTOR}.load_weight", (True,), "a run begins with the weights of model.path: give true"),
    refused(
        f"{MCORE}.override_mcore_model_config.*", f"{shared.FOLDER}: write it into its config.json"
    ),
    refused(f"{ACTOR}.engine.*", "of another trainer of theirs: give its layout in actor.megatron"),
    refused(
        "actor@actor_rollout_ref.actor",
        "of another trainer of theirs: give the keys of FSDP or Megatron",
    ),
    refused(
        f"{TRANSFORMER}.*",
        "it may change what is computed: leave it out where it changes speed alone",
    ),
    *ignored(
        TRANSFORMER,
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
    *ignored(
        ACTOR,
        "fsdp_config.* megatron.* veomni.* torchtitan.* model_engine data_loader_seed",
        shared.LAYOUT,
    ),
    *ignored(ACTOR, "fsdp_config.param_offload megatron.param_offload", shared.TURNS),
    *ignored(ACTOR, "router_replay.* qat.*", OFF),
    *ignored(ACTOR, "checkpoint.*", "a checkpoint holds all that a resume needs"),
    *ignored(
        ACTOR, "profiler.* calculate_sum_pi_squared sum_pi_squared_checkpointing", shared.REPORTS
    ),
    *ignored(ACTOR, "ppo_micro_batch_size rollout_n use_prefix_grouper", shared.LIMIT),
    *ignored(ACTOR, "use_remove_padding pad_to_length", shared.PADDING),
    *ignored(
        ACTOR,
        "use_torch_compile use_fused_kernels entropy_from_logits_with_chunking entropy_checkpointing"
        " entropy_from_logits_chunk_size",
        shared.DEVICE,
    ),
    own(f"{REF}.fsdp_config.param_offload", False, to.reference_offload),
    own(f"{REF}.megatron.param_offload", False, to.reference_offload),
    own(f"{REF}.model.path", None, to.reference),
    *ignored(REF, "*", "the reference has the trainer's layout and micro-batches"),
)

GENERATION: tuple[KeyRow, ...] = (
    only(f"{ROLLOUT}.name", ("vllm",), "the engine is vLLM: give vllm"),
    same(f"{ROLLOUT}.n", "rollout.group_size", 1, int),
    same(f"{ROLLOUT}.temperature", "rollout.temperature", 1.0, float),
    only(f"{ROLLOUT}.top_p", (1,), f"{shared.WHOLE}1"),
    only(f"{ROLLOUT}.top_k", (-1, 0), f"{shared.WHOLE}-1"),
    only(f"{ROLLOUT}.do_sample", (True,), "answers that train are drawn: give true"),
    only(f"{ROLLOUT}.ignore_eos", (False,), "an answer ends at its end: give false"),
    own(f"{ROLLOUT}.prompt_length", None, to.as_in_data("data.max_prompt_length")),
    own(f"{ROLLOUT}.response_length", None, to.as_in_data("data.max_response_length")),
    own(
        f"{ROLLOUT}.max_model_len",
        None,
        shared.longest_sequence("data.max_prompt_length", "data.max_response_length"),
    ),
    choice(
        f"{ROLLOUT}.dtype",
        "model.dtype",
        "bfloat16",
        {"bfloat16": "bfloat16", "float32": "float32"},
    ),
    same(f"{ROLLOUT}.gpu_memory_utilization", "rollout.memory_fraction", 0.5, float, shared.MEMORY),
    same(f"{ROLLOUT}.enforce_eager", "rollout.eager", False),
    same(f"{ROLLOUT}.tensor_model_parallel_size", "rollout.tensor_parallel", 2, int),
    only(f"{ROLLOUT}.pipeline_model_parallel_size", (1,), "a replica has one stage: give 1"),
    only(f"{ROLLOUT}.data_parallel_size", (1,), "give 1: rollout.replicas fail one by one"),
    own(f"{ROLLOUT}.limit_images", None, shared.limit_images),
    same(f"{ROLLOUT}.max_num_seqs", "rollout.max_concurrency", 256, int),
    same(f"{ROLLOUT}.enable_prefix_caching", "rollout.prefix_cache", True, is_on),
    own(f"{ROLLOUT}.val_kwargs.n", 1, to.validation_samples),
    *parts(f"{ROLLOUT}.val_kwargs", {"do_sample": False, "temperature": 0}),
    *parts(ROLLOUT, {"enable_rollout_routing_replay": False}),
    own(f"{ROLLOUT}.val_kwargs.top_p", 1.0, shared.top_p_of_validation),
    own(f"{ROLLOUT}.val_kwargs.top_k", -1, shared.top_k_of_validation),
    refused(f"{ROLLOUT}.quantization", "weights are not quantized here"),
    only(f"{ROLLOUT}.mtp.enable", (False,), "no speculative decoding here: give false"),
    only(f"{ROLLOUT}.over_sample_rate", (0,), "a batch waits for all of its groups: give 0"),
    noted(
        f"{ROLLOUT}.engine_kwargs.*", "options of vLLM are set here; rollout has those that matter"
    ),
    *ignored(ROLLOUT, "mtp.* qat.* quantization_config_file", OFF),
    *ignored(ROLLOUT, "expert_parallel_size moe_tensor_parallel_size", to.EXPERTS),
    *ignored(ROLLOUT, "free_cache_engine layered_summon multi_stage_wake_up", shared.TURNS),
    *ignored(
        ROLLOUT,
        "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz"
        " log_prob_max_token_len_per_gpu",
        shared.LIMIT,
    ),
    *ignored(
        ROLLOUT,
        "calculate_log_probs checkpoint_engine.* cudagraph_capture_sizes disable_log_stats disaggregation.*"
        " enable_chunked_prefill full_determinism load_format logprobs_mode max_num_batched_tokens mode"
        " n_gpus_per_node nnodes router_config_path scheduling_policy seed skip.* skip_tokenizer_init",
        shared.ENGINE,
    ),
    *ignored(
        ROLLOUT, "moe_load_balance_metrics_interval profiler.* prometheus.* trace.*", shared.REPORTS
    ),
)

EPISODES: tuple[KeyRow, ...] = (
    own(f"{TURNS}.enable", False, turns.enable),
    *parts(
        TURNS,
        {
            turns.CONFIGURED: None,
            turns.FUNCTIONS: None,
            "max_assistant_turns": None,
            "max_user_turns": None,
            "use_inference_chat_template": False,
        },
    ),
    own(f"{TURNS}.max_parallel_calls", 1, turns.parallel_calls),
    own(f"{TURNS}.max_tool_response_length", 256, turns.response_length),
    own(f"{TURNS}.tool_response_truncate_side", "middle", turns.truncated_side),
    refused(f"{TURNS}.interaction_config_path", turns.OWN_LOOP),
    *ignored(TURNS, "format", "calls are read in the form that the chat template asks for"),
    *ignored(TURNS, "tokenization_sanity_check_mode", "no token is made twice here"),
    *ignored(TURNS, "num_repeat_rollouts", "their program does not read it"),
    own(f"{AGENT}.default_agent_loop", "single_turn_agent", turns.loop),
    refused(f"{AGENT}.agent_loop_config_path", turns.OWN_LOOP),
    refused(f"{AGENT}.agent_loop_manager_class", turns.OWN_LOOP),
    refused(f"{AGENT}.custom_async_server.path", "the engine is vLLM, as rollout says: give null"),
    *ignored(AGENT, "num_workers", "the controller drives episodes; environment.replicas answer"),
    *ignored(AGENT, "custom_async_server.*", shared.ENGINE),
)

THE_MODEL: tuple[KeyRow, ...] = (
    own(f"{MODEL}.path", None, shared.model_folder),
    *(
        refused(f"{MODEL}.{name}", f"{shared.FOLDER}: put it there")
        for name in (
            "tokenizer_path",
            "custom_chat_template",
            "hf_config_path",
            "override_config.*",
        )
    ),
    refused(f"{MODEL}.external_lib", "code of a module is not loaded for a model: leave it out"),
    only(f"{MODEL}.mtp.enable", (False,), "no head for several tokens here: give false"),
    own(f"{MODEL}.enable_gradient_checkpointing", True, to.checkpointing),
    own(f"{MODEL}.lora_rank", 0, to.adapters),
    *parts(MODEL, {"lora_alpha": 16, "target_modules": "all-linear"}),
    *parts(
        LORA,
        {
            "rank": 0,
            "alpha": 32,
            "target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
        },
    ),
    own(f"{MODEL}.exclude_modules", None, shared.excluded(to.has_adapters)),
    own(f"{LORA}.exclude_modules", None, shared.excluded(to.has_adapters)),
    refused(f"{MODEL}.lora_adapter_path", "merge the adapters into the model first"),
    refused(f"{LORA}.adapter_path", "merge the adapters into the model first"),
    only(
        f"{LORA}.type",
        ("lora", "vlm_lora", "canonical_lora"),
        "adapters are two matrices: give lora",
    ),
    only(f"{LORA}.dropout", (0.0,), "adapters have no dropout here: give 0"),
    only(f"{LORA}.lora_B_init_method", ("zero", "zeros"), "B begins at 0 here: give zero"),
    *(
        only(f"{LORA}.{name}", (True,), FIXED)
        for name in ("freeze_language_model", "freeze_vision_model", "freeze_vision_projection")
    ),
    *ignored(
        LORA,
        "lora_A_init_method a2a_experimental dropout_position dtype merge",
        "A begins uniform within 1 / sqrt(its inputs), and engines get the model with its adapters added",
    ),
    *ignored(
        MODEL,
        "mtp.* fused_kernel_options.* tiled_mlp.* trust_remote_code use_fused_kernels use_liger"
        " use_remove_padding use_shm enable_activation_offload",
        shared.DEVICE,
    ),
)

THE_RUN: tuple[KeyRow, ...] = (
    own("trainer.total_epochs", 30, to.steps),
    *parts("trainer", {"total_training_steps": None}),
    same("trainer.project_name", "metrics.project", "verl_examples", shared.project_name),
    own("trainer.experiment_name", "gsm8k", shared.run_name),
    own("trainer.logger", ["console", "wandb"], shared.loggers),
    own("trainer.n_gpus_per_node", 8, to.layout),
    own("trainer.nnodes", 1, shared.hosts),
    own("trainer.save_freq", -1, to.every("run.checkpoint_every")),
    own("trainer.test_freq", -1, to.every("validation.every")),
    own("trainer.max_actor_ckpt_to_keep", None, to.kept_checkpoints),
    same("trainer.default_local_dir", "run.checkpoints", None, shared.absolute),
    only("trainer.resume_mode", ("auto", "disable"), NO_CHECKPOINT),
    refused("trainer.resume_from_path", NO_CHECKPOINT),
    same("trainer.val_before_train", "validation.before_train", True, is_on),
    switch("trainer.val_only", "validation.only", True),
    own("trainer.log_val_generations", 0, shared.logged),
    only(
        "trainer.critic_warmup",
        (0, 1),
        f"{shared.NO_CRITIC}, in whose first steps the policy stands still: give 0",
    ),
    only("trainer.v1.trainer_mode", ("sync",), "give sync, and set run.max_lag in the run"),
    *ignored("trainer", "max_critic_ckpt_to_keep", shared.NO_CRITIC),
    *ignored(
        "trainer",
        "balance_batch checkpoint_callback_class default_hdfs_dir del_local_ckpt_after_load device"
        " esi_redundant_time ray_wait_register_center_timeout rollout_data_dir use_legacy_worker_impl use_v1"
        " v1.* validation_data_dir",
        "it says how their program runs; docs/operations.md has how ours does",
    ),
    *ignored("actor_rollout_ref", "hybrid_engine nccl_timeout", shared.TURNS),
    only("distillation.enabled", (False,), "there is no teacher here: give false"),
    *ignored("", "distillation.* skip.*", OFF),
    *ignored("", "critic.*", shared.NO_CRITIC),
    *ignored("", "global_profiler.*", shared.REPORTS),
    *ignored(
        "",
        "transfer_queue.* ray_kwargs.* ray_init.* model_engine",
        "--launcher ray uses a Ray cluster",
    ),
)

REWARDS: tuple[KeyRow, ...] = (
    own(f"{to.FUNCTION}.path", None, to.reward),
    *parts(to.FUNCTION, {"name": "compute_score", "reward_kwargs.*": None}),
    *parts("reward.reward_kwargs", {"max_resp_len": None, "overlong_buffer_cfg.*": None}),
    only("reward.reward_model.enable", (False,), shared.NO_MODEL),
    only(
        "reward.reward_manager.name",
        to.MANAGERS,
        f"{OWN_REWARD}, and give one of {', '.join(to.MANAGERS)}",
    ),
    only("reward.reward_manager.source", ("register",), OWN_REWARD),
    refused("reward.reward_manager.module.path", OWN_REWARD),
    same("reward.num_workers", "reward.workers", None, int),
    refused(
        "reward.sandbox_fusion.url",
        "name it in reward.rules as a plugin with protocol: sandbox_fusion (docs/reward-code.md)",
    ),
    *ignored(
        "reward", "reward_model.* reward_manager.* sandbox_fusion.*", "rewards come from rules"
    ),
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
        *GENERATION,
        *EPISODES,
        *THE_MODEL,
        *THE_RUN,
        *REWARDS,
    ),
    # Without rollout_correction its loss does not look at the engine's log-probabilities.
    {"algorithm.correction.weights": "none"},
    # Names of before 2026, which go before the newer ones there.
    {
        "custom_reward_function": to.FUNCTION,
        "reward_model.reward_kwargs": "reward.reward_kwargs",
        "reward_model.reward_manager": "reward.reward_manager.name",
        "reward_model.reward_loop_source": "reward.reward_manager.source",
        "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
        "reward_model.num_workers": "reward.num_workers",
        "reward_model.sandbox_fusion": "reward.sandbox_fusion",
        "reward_model": "reward.reward_model",
        "sandbox_fusion": "reward.sandbox_fusion",
    },
)
