"""What values of theirs become: the meaning is kept, or the import says what differs."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from commands.importing.shared import project_name
from tests.importing.test_arithmetic import config_of
from tests.importing.test_tables import converted
from trimaran.config import MAX_COUNT, parse_config

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MODEL, MCORE = "actor_rollout_ref.model", "actor_rollout_ref.actor.megatron"
FSDP, OPTIM = f"{ACTOR}.fsdp_config", f"{ACTOR}.optim"
OVERRIDE = f"{OPTIM}.override_optimizer_config"
CORRECTION = "algorithm.rollout_correction"
OVERLONG = "reward_model.reward_kwargs.overlong_buffer_cfg"
REWARD = "worker.reward.reward_function"
DAPO = {
    "megatron_training.stage": "ray_dapo",
    "rl_config.clip_higher_enable": True,
    "rl_config.clip_ratio_low": 0.2,
    "rl_config.clip_ratio_high": 0.28,
    "rl_config.verifier_function": ["acc_for_dapo"],
    "rl_config.overlong_buffer_enable": True,
    "rl_config.rollout_max_tokens": 20480,
    "rl_config.overlong_buffer": 4096,
    "rl_config.filter_groups_enable": True,
    "rl_config.filter_groups_metric": "acc_for_dapo",
    "rl_config.filter_groups_max_batches": -1,
    "rl_config.filter_groups_train_batch_size": 64,
}
EXPERTS = {
    "actor_config.tensor_model_parallel_size": 4,
    "actor_config.expert_model_parallel_size": 8,
    "rl_config.actor_resource.num_npus": 256,
    "generate_config.infer_tensor_parallel_size": 4,
}
VERLS_EXPERTS = {
    f"{ACTOR}.strategy": "megatron",
    f"{MCORE}.tensor_model_parallel_size": 2,
    f"{MCORE}.expert_model_parallel_size": 4,
    "trainer.n_gpus_per_node": 32,
}
QUIET = {"data.val_files": "test.parquet", "trainer.val_before_train": False}

SETTINGS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    # What is minimized.
    ("easyr1", {}, {"algorithm.loss.clip_low": 0.2, "algorithm.loss.clip_high": 0.3}),
    ("easyr1", {}, {"algorithm.loss.dual_clip": 3.0, "trainer.beta2": 0.999}),
    (
        "easyr1",
        {
            "worker.actor.loss_type": "cispo",
            "worker.actor.clip_ratio_low": 0,
            "worker.actor.clip_ratio_high": 4,
        },
        {"algorithm.loss": {"type": "cispo", "clip_low": 0.0, "clip_high": 4.0}},
    ),
    ("easyr1", {"algorithm.disable_kl": True}, {"algorithm.kl.coefficient": 0.0}),
    (
        "easyr1",
        {
            "algorithm.use_kl_loss": True,
            "algorithm.kl_coef": 0.01,
            "algorithm.kl_penalty": "low_var_kl",
        },
        {
            "algorithm.kl.coefficient": 0.01,
            "algorithm.kl.place": "loss",
            "algorithm.kl.estimator": "k3",
        },
    ),
    ("easyr1", {}, {"algorithm.kl.place": "reward", "algorithm.kl.estimator": "k1"}),
    ("verl", {}, {"algorithm.kl.coefficient": 0, "algorithm.aggregation.type": "token_mean"}),
    (
        "verl",
        {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": "k3+"},
        {"algorithm.kl.coefficient": 0.001, "algorithm.kl.estimator": "k2"},
    ),
    (
        "verl",
        {
            "algorithm.use_kl_in_reward": True,
            "algorithm.kl_ctrl.type": "adaptive",
            "algorithm.kl_ctrl.target_kl": 0.05,
        },
        {"algorithm.kl.place": "reward", "algorithm.kl.adaptive.target": 0.05},
    ),
    (
        "verl",
        {f"{ACTOR}.policy_loss.loss_mode": "gspo"},
        {"algorithm.loss.type": "gspo", "algorithm.aggregation.type": "sequence_mean"},
    ),
    (
        "verl",
        {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm"},
        {"algorithm.aggregation.type": "fixed", "algorithm.aggregation.tokens": 512},
    ),
    ("mindspeed-rl", DAPO, {"algorithm.kl.coefficient": 0, "algorithm.loss.clip_high": 0.28}),
    (
        "mindspeed-rl",
        DAPO,
        {
            "reward.rules.overlong.options": {"max_tokens": 20480, "buffer": 4096},
            "algorithm.dynamic_sampling.term": "acc_for_dapo",
            "algorithm.dynamic_sampling.max_replaced": 1000,
            "run.groups_per_step": 64,
            "algorithm.updates_per_batch": 2,
        },
    ),
    (
        "mindspeed-rl",
        {**DAPO, "rl_config.is_multimodal": True},
        {"algorithm.dynamic_sampling.term": None},
    ),
    # Its GRPO reads clip_ratio alone, and filters nothing (models/loss/grpo_actor_loss_func.py).
    (
        "mindspeed-rl",
        {**DAPO, "megatron_training.stage": "ray_grpo"},
        {
            "algorithm.loss.clip_high": 0.2,
            "algorithm.dynamic_sampling": None,
            "run.groups_per_step": 32,
        },
    ),
    # verl's threshold is a cap, or two bounds.
    *(
        (
            "verl",
            {f"{CORRECTION}.rollout_is": "token", f"{CORRECTION}.rollout_is_threshold": threshold},
            {
                "algorithm.correction.weights": "token",
                "algorithm.correction.cap": cap,
                "algorithm.correction.token_bounds": bounds,
            },
        )
        for threshold, cap, bounds in (
            (3, 3.0, None),
            ("3.0", 3.0, None),
            ("0.5_4.0", None, [0.5, 4]),
        )
    ),
    (
        "verl",
        {f"{ACTOR}.router_replay.mode": "R3", f"{ROLLOUT}.enable_rollout_routing_replay": True},
        {"trainer.router.replay": True},
    ),
    # The optimizer.
    ("verl", {f"{OPTIM}.betas": [0.9, 0.95]}, {"trainer.beta2": 0.95}),
    (
        "verl",
        {f"{ACTOR}.strategy": "megatron", f"{OPTIM}.betas": [0.9, 0.95]},
        {"trainer.beta2": 0.999},
    ),
    ("mindspeed-rl", {"actor_config.adam_eps": 1e-10}, {"trainer.epsilon": 1e-10}),
    ("mindspeed-rl", {"actor_config.lr": 5e-6}, {"trainer.learning_rate": 5e-6}),
    # Layout.
    (
        "mindspeed-rl",
        {
            "megatron_training.tensor_model_parallel_size": 8,
            "actor_config.tensor_model_parallel_size": 2,
            "megatron_training.sequence_parallel": True,
        },
        {"trainer.tensor_parallel": 2, "trainer.sequence_parallel": True},
    ),
    (
        "mindspeed-rl",
        {**EXPERTS, "actor_config.moe_tp_extend_ep": True},
        {"trainer.expert_parallel": 32},
    ),
    ("mindspeed-rl", EXPERTS, {"trainer.expert_parallel": 8, "trainer.expert_tensor_parallel": 4}),
    # megatron-core splits experts as the rest, where nothing else is said.
    ("verl", VERLS_EXPERTS, {"trainer.expert_parallel": 4, "trainer.expert_tensor_parallel": 2}),
    (
        "verl",
        {**VERLS_EXPERTS, f"{MCORE}.expert_tensor_parallel_size": 1},
        {"trainer.expert_tensor_parallel": 1},
    ),
    (
        "mindspeed-rl",
        {
            "actor_config.num_layer_list": "1,3,4,2",
            "actor_config.pipeline_model_parallel_size": 4,
        },
        {"trainer.pipeline_layers": [1, 3, 4, 2]},
    ),
    *(
        (name, {key: theirs}, {"trainer.recompute": ours})
        for name, key in (
            ("verl", f"{MCORE}.override_transformer_config.recompute_granularity"),
            ("mindspeed-rl", "megatron_training.recompute_granularity"),
        )
        for theirs, ours in (("full", True), ("selective", "selective"), (None, False))
    ),
    (
        "mindspeed-rl",
        {
            "megatron_training.lora_r": 64,
            "megatron_training.lora_target_modules": ["linear_qkv", "linear_fc2"],
        },
        {
            "trainer.lora.rank": 64,
            "trainer.lora.targets": ["q_proj", "k_proj", "v_proj", "down_proj"],
        },
    ),
    # Rewards.
    (
        "easyr1",
        {
            REWARD: "./examples/reward_function/dapo.py:compute_score",
            f"{REWARD}_kwargs.max_response_length": 20480,
            f"{REWARD}_kwargs.overlong_buffer_length": 4096,
            f"{REWARD}_kwargs.overlong_penalty_factor": 1.0,
        },
        {"reward.rules.dapo.options": {"max_tokens": 20480, "buffer": 4096, "factor": 1.0}},
    ),
    (
        "easyr1",
        {REWARD: None, "worker.reward.compute_score": "r1v"},
        {"reward.rules.r1v.weight": 1.0},
    ),
    (
        "verl",
        {
            f"{OVERLONG}.enable": True,
            f"{OVERLONG}.len": 100,
            "reward_model.reward_kwargs.max_resp_len": 400,
        },
        {"reward.rules.overlong.options": {"buffer": 100, "max_tokens": 400}},
    ),
    # Validation.
    ("verl", {**QUIET, "trainer.test_freq": -1}, {"data.validation": None}),
    (
        "verl",
        {**QUIET, "trainer.test_freq": 5},
        {"validation.every": 5, "validation.before_train": False},
    ),
    ("verl", {**QUIET, "trainer.val_only": True}, {"validation.only": True}),
    ("easyr1", {**QUIET, "trainer.val_only": True}, {"validation.only": True}),
    (
        "verl",
        {
            f"{ROLLOUT}.val_kwargs.do_sample": True,
            f"{ROLLOUT}.val_kwargs.n": 8,
            f"{ROLLOUT}.val_kwargs.temperature": 0.6,
            f"{ROLLOUT}.val_kwargs.top_p": 0.95,
        },
        {"validation.final_samples": 8, "validation.temperature": 0.6, "validation.top_p": 0.95},
    ),
    (
        "easyr1",
        {
            "worker.rollout.val_override_config.n": 2,
            "worker.rollout.val_override_config.max_tokens": 64,
        },
        {"validation.samples": 2, "validation.max_tokens": 64},
    ),
    (
        "verl",
        {"trainer.log_val_generations": 5, "trainer.logger": ["console", "wandb"]},
        {"validation.logged": 5, "metrics.sinks": ["wandb"]},
    ),
    (
        "verl",
        {
            "data.apply_chat_template_kwargs.enable_thinking": "False",
            "data.apply_chat_template_kwargs.reasoning_effort": "low",
        },
        {"data.chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"}},
    ),
]


@pytest.mark.parametrize(("name", "given", "ours"), SETTINGS)
def test_a_value_keeps_its_meaning(name: str, given: dict[str, Any], ours: dict[str, Any]) -> None:
    tree = json.loads(config_of(name, **given).model_dump_json())

    def at(key: str) -> Any:
        return reduce(lambda branch, part: branch[part], key.split("."), tree)

    assert {key: at(key) for key in ours} == ours


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("verl", {"algorithm.adv_estimator": "gae"}, "critic"),
    ("easyr1", {"algorithm.adv_estimator": "gae"}, "critic"),
    ("mindspeed-rl", {"megatron_training.stage": "dpo"}, "no pairs"),
    ("verl", {f"{ROLLOUT}.top_p": 0.9}, "give 1"),
    ("verl", {f"{ROLLOUT}.name": "sglang"}, "give vllm"),
    ("verl", {"reward_model.enable": True}, "docs/reward-plugins.md"),
    ("verl", {"trainer.v1.trainer_mode": "separate_async"}, "run.max_lag"),
    ("verl", {f"{ACTOR}.use_kl_loss": True, "algorithm.use_kl_in_reward": True}, "one place"),
    ("verl", {f"{ACTOR}.use_kl_loss": "maybe"}, "'maybe' is neither on (true, yes, on, 1)"),
    ("verl", {f"{ACTOR}.router_replay.mode": "R3"}, "enable_rollout_routing_replay=True"),
    ("verl", {f"{ACTOR}.grad_clip": "much"}, "is no value"),
    ("verl", {f"{OPTIM}.weight_decay": None}, "their default is 0.01"),
    ("verl", {f"{OPTIM}.num_cycles": 1.5}, "give 0.5"),
    ("verl", {f"{OPTIM}.lr_decay_steps": 7}, "give null"),
    ("verl", {f"{OPTIM}.exp_avg_sq_dtype": "bf16"}, "give float32"),
    ("verl", {f"{OVERRIDE}.weight_decay": 0.1}, "optim's lr, weight_decay and betas"),
    ("verl", {f"{FSDP}.dtype": "float16"}, "give bfloat16"),
    ("verl", {f"{FSDP}.qat.enable": True}, "not quantized"),
    ("verl", {f"{MCORE}.override_mcore_model_config.num_layers": 2}, "config.json"),
    ("verl", {f"{MCORE}.override_transformer_config.moe_router_topk": 2}, "what is computed"),
    ("verl", {"actor_rollout_ref.ref.model.path": "other"}, "set trainer.load"),
    ("verl", {f"{ROLLOUT}.response_length": 64}, "data.max_response_length=64"),
    ("verl", {f"{ROLLOUT}.agent.default_agent_loop": "tool_agent"}, "multi_turn.tool_config_path"),
    ("verl", {f"{ROLLOUT}.agent.default_agent_loop": "mine"}, "docs/agents.md"),
    ("verl", {f"{ROLLOUT}.agent.agent_loop_config_path": "a.yaml"}, "docs/agents.md"),
    ("verl", {f"{ROLLOUT}.multi_turn.interaction_config_path": "a.yaml"}, "docs/agents.md"),
    ("verl", {"data.tool_config_path": "a.yaml"}, "multi_turn.tool_config_path=a.yaml"),
    ("mindspeed-rl", {"rl_config.multi_turn_enable": True}, "docs/agents.md"),
    ("verl", {f"{MODEL}.external_lib": "models.mine"}, "is not loaded"),
    ("verl", {f"{MODEL}.lora_rank": 8, f"{MODEL}.target_modules": "qproj"}, "adapters go to"),
    ("verl", {f"{MODEL}.lora_rank": 8, f"{MODEL}.exclude_modules": "lm_head"}, "leave it out"),
    ("verl", {"data.train_max_samples": 100}, "--limit 100"),
    ("verl", {"data.truncation": "left"}, "skipped, not cut"),
    ("verl", {"reward_model.reward_manager": "mine"}, "a reward is a function here"),
    ("verl", {"reward.reward_manager.module.path": "mine.py"}, "a reward is a function here"),
    ("verl", {f"{OVERLONG}.enable": True}, "overlong_buffer_cfg.len=N"),
    (
        "verl",
        {f"{CORRECTION}.rollout_is": "sequence", f"{CORRECTION}.rollout_is_threshold": "0.5_4.0"},
        "a token's weight",
    ),
    (
        "verl",
        {"data.reward_fn_key": "source", "custom_reward_function.path": "reward.py"},
        "call source so",
    ),
    (
        "verl",
        {
            "trainer.total_training_steps": None,
            "data.gen_batch_size": 512,
            "algorithm.filter_groups.enable": True,
        },
        "give trainer.total_training_steps=N",
    ),
    ("easyr1", {"data.train_files": "hiyouga/geometry3k@train"}, "trimaran data prepare"),
    ("easyr1", {"data.format_prompt": "./examples/format_prompt/math.jinja"}, "template"),
    (
        "easyr1",
        {"trainer.max_steps": None, "worker.actor.optim.lr_warmup_ratio": 0.1},
        "give trainer.max_steps=N",
    ),
    ("easyr1", {"worker.actor.fsdp.mp_param_dtype": "fp32"}, "give bfloat16"),
    ("mindspeed-rl", {"megatron_training.data_path": "./dataset/data"}, "prefix"),
    ("mindspeed-rl", {"rl_config.verifier_function": ["acurracy"]}, "verifiers are"),
    (
        "mindspeed-rl",
        {"actor_config.load": "./ckpt", "actor_config.finetune": False},
        "finetune=true",
    ),
    (
        "mindspeed-rl",
        {"actor_config.load": "x", "actor_config.finetune": "maybe"},
        "actor_config.finetune: 'maybe' is neither",
    ),
    (
        "mindspeed-rl",
        {**DAPO, "rl_config.filter_groups_train_batch_size": 48},
        "give a rl_config.mini_batch_size that divides 48",
    ),
    ("mindspeed-rl", {"megatron_training.train_iters": None}, "give megatron_training.train"),
    ("mindspeed-rl", {"rl_config.reward_resource.num_npus": 8}, "serve one over HTTP"),
    ("mindspeed-rl", {"megatron_training.split": "90,5,5"}, "--hold-out N"),
]


@pytest.mark.parametrize(("name", "given", "words"), REFUSED)
def test_what_would_change_the_training_is_refused_with_what_to_do(
    name: str, given: dict[str, Any], words: str
) -> None:
    assert words in " ".join(converted(name, **given).having("refused").values())


NOTED: list[tuple[str, dict[str, Any], str, str]] = [
    ("verl", {f"{FSDP}.model_dtype": "bf16"}, f"{FSDP}.model_dtype", "adamw_bf16 keeps weights"),
    ("verl", {f"{ROLLOUT}.max_model_len": 1000}, f"{ROLLOUT}.max_model_len", "together"),
    (
        "verl",
        {f"{ACTOR}.strategy": "megatron", f"{OPTIM}.betas": [0.9, 0.95]},
        f"{OPTIM}.betas",
        "does not read it",
    ),
    (
        "verl",
        {f"{ACTOR}.policy_loss.loss_mode": "gspo", f"{ACTOR}.use_kl_loss": True},
        f"{ACTOR}.loss_agg_mode",
        "KL",
    ),
    ("verl", {"data.image_key": "images"}, "data.image_key", "~data.image_key"),
    (
        "easyr1",
        {"worker.actor.optim.strategy": "adamw_bf16"},
        "worker.actor.optim.betas",
        "0.99 is taken",
    ),
    (
        "easyr1",
        {"data.filter_overlong_prompts": False},
        "data.filter_overlong_prompts",
        "cut on the right",
    ),
    (
        "easyr1",
        {"worker.actor.loss_avg_mode": "seq"},
        "worker.actor.loss_avg_mode",
        "micro-batch",
    ),
    ("mindspeed-rl", {}, "rl_config.token_level_loss", "micro-batch"),
    (
        "mindspeed-rl",
        {"rl_config.partial_rollout_max_split": 2},
        "rl_config.partial_rollout_max_split",
        "run.max_lag above 0",
    ),
    (
        "mindspeed-rl",
        {"rl_config.filter_groups_enable": True},
        "rl_config.filter_groups_enable",
        "ray_dapo",
    ),
    (
        "mindspeed-rl",
        {"ref_config.load": "./first", "actor_config.load": "./later"},
        "ref_config.load",
        "set trainer.load",
    ),
    (
        "mindspeed-rl",
        {"actor_config.noop_layers": "0,11"},
        "actor_config.noop_layers",
        "trainer.pipeline_layers",
    ),
]


@pytest.mark.parametrize(("name", "given", "key", "words"), NOTED)
def test_what_trains_a_little_differently_is_noted(
    name: str, given: dict[str, Any], key: str, words: str
) -> None:
    assert words in converted(name, **given).having("noted")[key]


def test_what_their_examples_say_of_the_same_goes_through() -> None:
    verl = {
        f"{OVERRIDE}.optimizer_cpu_offload": True,
        f"{FSDP}.dtype": "bfloat16",
        f"{FSDP}.model_dtype": "fp32",
        f"{FSDP}.forward_prefetch": False,
        f"{MCORE}.dtype": "bfloat16",
        "actor_rollout_ref.ref.model.path": "qwen",
        f"{ROLLOUT}.response_length": 512,
        f"{ROLLOUT}.max_model_len": 1024,
        f"{MODEL}.exclude_modules": "layers.3",
        "reward_model.reward_manager": "dapo",
        "data.reward_fn_key": "source",
    }
    assert verl.keys() <= converted("verl", **verl).having("ignored").keys()


def test_the_name_that_goes_before_another_one_counts() -> None:
    """Of the same key: null is no value, and the other one is listed as ignored."""
    key, newer = "custom_reward_function.path", "reward.custom_reward_function.path"
    both = converted("verl", **{key: "a.py", newer: "b.py"})
    assert both.tree["reward"]["rules"]["compute_score"]["function"].endswith("/a.py:compute_score")
    assert both.having("ignored")[newer] == f"{key} goes before it"
    null = converted("verl", **{key: None, newer: "b.py"})
    assert null.tree["reward"]["rules"]["compute_score"]["function"].endswith("/b.py:compute_score")
    assert null.having("ignored")[key] == f"{newer} goes before it"


def write_rows(path: Path, number: int = 1, **columns: Any) -> str:
    if path.suffix == ".jsonl":
        path.write_text('{"prompt": "1 + 1?", "answer": "2"}\n' * number)
    else:
        table = {"prompt": "a", "answer": "1", **columns}
        rows = {
            name: value if isinstance(value, list) else [value] * number
            for name, value in table.items()
        }
        parquet.write_table(pyarrow.table(rows), path)
    return str(path)


def test_steps_follow_from_the_rows(tmp_path: Path) -> None:
    """EasyR1's guide: 2,100 rows // 256 are 8 steps an epoch."""
    keys: dict[str, Any] = {
        "data.train_files": write_rows(tmp_path / "geo3k.jsonl", 2100),
        "data.rollout_batch_size": 256,
        "worker.actor.global_batch_size": 64,
        "trainer.max_steps": None,
        "trainer.total_episodes": 15,
        "worker.actor.optim.lr_warmup_ratio": 0.1,
    }
    config = config_of("easyr1", **keys)
    assert (config.run.steps, config.trainer.warmup_steps) == (15 * 8, 12)
    assert config.run.checkpoint_every == config.validation.every == 120


@pytest.mark.parametrize(("total", "steps"), [(None, 8), (5, 5), (8, 8), (100, 8)])
def test_verls_run_ends_with_its_epochs_or_its_steps(
    tmp_path: Path, total: int | None, steps: int
) -> None:
    """Its loop is over the epochs, and leaves it at total_training_steps (ray_trainer.py, fit)."""
    keys: dict[str, Any] = {
        "data.train_files": write_rows(tmp_path / "a.parquet", 70, data_source="openai/gsm8k"),
        "data.train_batch_size": 16,
        f"{ACTOR}.ppo_mini_batch_size": 16,
        f"{OPTIM}.lr_warmup_steps_ratio": 0.1,
        "trainer.total_epochs": 2,
        "trainer.total_training_steps": total,
    }
    made = converted("verl", **keys)
    assert made.tree["run"]["steps"] == steps
    # Their ratio is of the greater number.
    assert made.tree["trainer"]["warmup_steps"] == (total or steps) // 10
    assert ("end before" in made.having("noted").get("trainer.total_epochs", "")) == (total == 100)


def test_steps_that_cannot_be_counted_here_are_the_runs_epochs() -> None:
    keys: dict[str, Any] = {"data.train_files": "away.parquet", "trainer.max_steps": None}
    made = converted("easyr1", **keys, **{"trainer.total_epochs": 4, "trainer.val_freq": -1})
    assert "the run counts them" in made.having("noted")["trainer.total_epochs"]
    assert (made.tree["run"]["epochs"], made.tree["run"].get("steps")) == (4, None)
    assert made.tree["validation"]["every"] == MAX_COUNT, "at the end alone, wherever that is"


def test_verls_loader_says_how_many_prompts_a_step_has(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "data.train_files": write_rows(tmp_path / "train.jsonl", 24),
        "data.train_batch_size": 4,
        "data.gen_batch_size": 8,
        f"{ACTOR}.ppo_mini_batch_size": 4,
        "trainer.total_training_steps": None,
        "trainer.total_epochs": 1,
        "reward.custom_reward_function.path": "r.py",
    }
    for filters, prompts in ((False, 8), (True, 4)):
        run = converted("verl", **keys, **{"algorithm.filter_groups.enable": filters}).tree["run"]
        assert (run["groups_per_step"], run["steps"]) == (prompts, 3)


def test_verls_reward_follows_from_the_rows_source(tmp_path: Path) -> None:
    key = "reward.custom_reward_function.path"

    def made(name: str, **columns: Any) -> Any:
        rows = write_rows(tmp_path / name, 2, **columns)
        return converted("verl", **{"data.train_files": rows})

    assert list(made("a.parquet", data_source="hiyouga/geometry3k").tree["reward"]["rules"]) == [
        "geo3k"
    ]
    mixed = made("b.parquet", data_source=["openai/gsm8k", "hiyouga/geometry3k"]).tree
    assert mixed["data"]["task_key"] == "data_source"
    assert mixed["reward"]["rules"]["gsm8k"] == {"weight": 1.0, "tasks": ["openai/gsm8k"]}
    assert "data_source is mine" in made("c.parquet", data_source="mine").having("refused")[key]
    raw = made("gsm8k.parquet", reward_model=[{"ground_truth": "2"}] * 2)
    assert raw.tree["data"]["answer_key"] == "reward_model.ground_truth"
    assert "mine.parquet has none: prepare it" in made("mine.parquet").having("refused")[key]
    # Without the file its name says it, as verl's preparation writes it.
    assert list(config_of("verl").reward.rules) == ["gsm8k"]
    away = config_of("verl", **{"data.train_files": "x.parquet"})
    assert away.reward.rules["boxed_equal"].tasks[-1] == "HuggingFaceH4/MATH-500"
    assert away.data.train[0].task_key == "data_source"


def test_a_function_of_the_users_is_named_with_its_options() -> None:
    keys = {
        "custom_reward_function.path": "rewards/mine.py",
        "custom_reward_function.name": "score",
        "custom_reward_function.reward_kwargs.scale": 2,
    }
    made = converted("verl", **keys)
    rule = made.tree["reward"]["rules"]["score"]
    assert rule["function"] == f"{Path('rewards/mine.py').absolute()}:score"
    assert rule["options"] == {"scale": 2}
    assert "--allow" in made.having("noted")["custom_reward_function.path"]


def test_images_come_from_the_column_that_the_rows_have(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"data.image_key": "images", "data.min_pixels": 65536}
    for name, columns, has_images in (("a", {"images": [[b"x"]]}, True), ("b", {}, False)):
        keys["data.train_files"] = write_rows(tmp_path / f"{name}.parquet", 1, **columns)
        assert ("image_key" in converted("easyr1", **keys).tree["data"]) is has_images
    assert "image_key" not in converted("verl").tree["data"]


def test_several_files_are_mixed_by_their_rows(tmp_path: Path) -> None:
    """There they are one list of rows, of which each comes once an epoch (utils/dataset/rl_dataset.py)."""

    def weights(*numbers: int, **given: Any) -> tuple[list[int], str]:
        files = [write_rows(tmp_path / f"{n}.parquet", n, data_source="math") for n in numbers]
        made = converted("verl", **{"data.train_files": files, **given})
        train = parse_config(made.tree).data.train
        assert [str(one.path) for one in train] == files
        return [one.weight for one in train], made.having("noted").get("data.train_files", "")

    small = {"data.train_batch_size": 10, f"{ACTOR}.ppo_mini_batch_size": 10}
    assert weights(40, 60, **small) == ([2, 3], "")
    assert "one file follows the other" in weights(40, 60, **small, **{"data.shuffle": False})[1]
    assert weights(7, 7473, 12000)[0] == [1, 623, 1000]
    away = converted("verl", **{"data.train_files": [str(tmp_path / "7.parquet"), "away.parquet"]})
    assert "weight" in away.having("noted")["data.train_files"]


def test_a_system_prompt_on_top_of_words_in_the_rows_is_noted(tmp_path: Path) -> None:
    rows, card = tmp_path / "train.jsonl", tmp_path / "train.card.json"
    rows.write_text("{}\n")
    keys: dict[str, Any] = {"data.train_files": str(rows), "data.system_prompt": "Think."}
    for words, fate in ((" Think first.", "noted"), ("", "mapped")):
        template = {"before": "", "after": words, "system": None}
        card.write_text(json.dumps({"plan": {"template": template}}))
        assert converted("easyr1", **keys).outcomes["data.system_prompt"].fate == fate


def test_a_hub_is_named_for_what_it_may_have() -> None:
    for model, is_on_hub in (("Qwen/Qwen2.5-7B", True), ("./Qwen2.5-7B", False)):
        made = converted("easyr1", **{"worker.actor.model.model_path": model})
        text = made.outcomes["worker.actor.model.model_path"].text
        assert ("hf download" in text) == is_on_hub
    assert project_name("team/geo 3k:v1.") == "team-geo 3k-v1"


@pytest.mark.parametrize(
    ("frozen", "patterns"),
    [
        (("vision_encoder", "vision_projector"), ("*visual.*",)),
        (("vision_encoder",), ("*visual.patch_embed.*", "*visual.blocks.*")),
        ((), ()),
    ],
)
def test_a_tower_that_mindspeed_mms_model_file_freezes_stays_as_it_is(
    tmp_path: Path, frozen: tuple[str, ...], patterns: tuple[str, ...]
) -> None:
    sections = {name: {"freeze": name in frozen} for name in ("vision_encoder", "vision_projector")}
    path = tmp_path / "qwen2.5vl_3b.json"
    path.write_text(json.dumps({"image_encoder": sections}))
    given: dict[str, Any] = {"model": str(path), "rl_config.is_multimodal": True}
    assert config_of("mindspeed-rl", **given).trainer.freeze == patterns
    path.unlink()
    away = converted("mindspeed-rl", **given)
    assert "is not here" in away.having("noted")["model"]
    assert away.tree["trainer"]["freeze"] == ["*visual.*"]
