# The settings of EasyR1's examples/qwen2_5_vl_7b_geo3k_grpo.sh, July 2026.
MODEL_PATH=Qwen/Qwen2.5-VL-7B-Instruct
python3 -m verl.trainer.main config=config.yaml \
    data.train_files=hiyouga/geometry3k@train data.val_files=hiyouga/geometry3k@test \
    worker.actor.model.model_path=${MODEL_PATH} \
    trainer.experiment_name=qwen2_5_vl_7b_geo_grpo trainer.n_gpus_per_node=8
