# The settings of EasyR1's examples/qwen2_5_7b_math_grpo.sh, July 2026.
MODEL_PATH=Qwen/Qwen2.5-7B-Instruct
python3 -m verl.trainer.main config=config.yaml worker.actor.model.model_path=${MODEL_PATH}
