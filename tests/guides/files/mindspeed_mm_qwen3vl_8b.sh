# The settings of MindSpeed-MM's guide for Qwen3-VL-8B on verl (examples/verl_examples/qwen3vl, August 2026). As there, a
# loop takes --data_path and --model_path.
data_path=""
model_path=""
for word in $*; do
    if [[ $word == --data_path* ]]; then data_path=${word#*=}; fi
    if [[ $word == --model_path* ]]; then model_path=${word#*=}; fi
done
max_prompt_length=1024
max_response_length=2048
n_gpus_per_node=8
export HCCL_CONNECT_TIMEOUT=5400
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False \
    data.train_files=$data_path/train.parquet data.val_files=$data_path/test.parquet \
    data.train_batch_size=512 data.max_prompt_length=$max_prompt_length \
    data.max_response_length=$max_response_length data.filter_overlong_prompts=True \
    data.truncation='error' data.image_key=images data.shuffle=False \
    critic.strategy=fsdp2 actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.model.path=$model_path actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.01 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.actor.use_torch_compile=False \
    actor_rollout_ref.actor.entropy_from_logits_with_chunking=True \
    actor_rollout_ref.actor.fsdp_config.fsdp_size=8 \
    actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.actor.fsdp_config.forward_prefetch=False \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \
    actor_rollout_ref.rollout.max_num_batched_tokens=8192 \
    actor_rollout_ref.rollout.enable_chunked_prefill=True actor_rollout_ref.rollout.ignore_eos=False \
    actor_rollout_ref.rollout.enforce_eager=False actor_rollout_ref.rollout.free_cache_engine=True \
    +actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    actor_rollout_ref.ref.fsdp_config.forward_prefetch=False \
    actor_rollout_ref.ref.entropy_from_logits_with_chunking=True \
    trainer.critic_warmup=0 trainer.logger=console \
    trainer.project_name='verl_grpo_example_geo3k' trainer.experiment_name='qwen3_vl_8b_function_rm' \
    trainer.n_gpus_per_node=$n_gpus_per_node trainer.nnodes=1 trainer.device=npu \
    trainer.save_freq=20 trainer.test_freq=-1 trainer.val_before_train=False \
    trainer.total_epochs=25 trainer.total_training_steps=100 | tee train.log 2>&1 &
