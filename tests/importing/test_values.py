"""What values of theirs become: the meaning is kept, or somebody is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from commands.importing.conversion import Conversion
from commands.importing.shared import project_name
from tests.importing.test_arithmetic import config_of
from tests.importing.test_tables import converted
from trimaran.config import MAX_COUNT, parse_config


def section(value: Any) -> dict[str, Any]:
    return json.loads(value.model_dump_json())


def test_a_project_keeps_what_our_key_may_hold() -> None:
    assert project_name("team/geo 3k:v1.") == "team-geo 3k-v1"


def test_easyr1s_loss_keeps_its_own_bounds_also_where_the_file_has_none() -> None:
    loss = section(config_of("easyr1").algorithm.loss)
    assert loss == {"type": "ppo_clip", "clip_low": 0.2, "clip_high": 0.3, "dual_clip": 3.0}
    trainer = config_of("easyr1").trainer
    assert (trainer.beta2, trainer.weight_decay, trainer.recompute) == (0.999, 0.01, True)


@pytest.mark.parametrize(
    ("keys", "kl"),
    [
        ({"algorithm__disable_kl": True}, (0.0, "loss", "k3")),
        (
            {
                "algorithm__use_kl_loss": True,
                "algorithm__kl_coef": 0.01,
                "algorithm__kl_penalty": "low_var_kl",
            },
            (0.01, "loss", "k3"),
        ),
        (
            {
                "algorithm__use_kl_loss": False,
                "algorithm__kl_coef": 0.001,
                "algorithm__kl_penalty": "kl",
            },
            (0.001, "reward", "k1"),
        ),
        ({"algorithm__kl_coef": 0.0}, (0.0, "loss", "k3")),
    ],
)
def test_easyr1s_kl(keys: dict[str, Any], kl: tuple[float, str, str]) -> None:
    found = config_of("easyr1", **keys).algorithm.kl
    assert (found.coefficient, found.place, found.estimator) == kl


def test_verls_kl_has_one_place() -> None:
    assert config_of("verl").algorithm.kl.coefficient == 0
    key = "actor_rollout_ref.actor.use_kl_loss"
    in_loss = {
        "actor_rollout_ref__actor__use_kl_loss": True,
        "actor_rollout_ref__actor__kl_loss_type": "k3+",
    }
    kl = config_of("verl", **in_loss).algorithm.kl
    assert (kl.coefficient, kl.place, kl.estimator) == (0.001, "loss", "k2")
    adaptive = {
        "algorithm__use_kl_in_reward": True,
        "algorithm__kl_ctrl__type": "adaptive",
        "algorithm__kl_ctrl__target_kl": 0.05,
    }
    found = config_of("verl", **adaptive).algorithm.kl
    assert found.place == "reward" and found.adaptive and found.adaptive.target == 0.05
    both = converted("verl", **in_loss, **adaptive)
    assert "one place" in both.having("refused")[key]


def test_dapo_of_mindspeed_rl_has_no_kl_and_shapes_long_answers() -> None:
    keys = {
        "megatron_training__stage": "ray_dapo",
        "rl_config__clip_higher_enable": True,
        "rl_config__clip_ratio_low": 0.2,
        "rl_config__clip_ratio_high": 0.28,
        "rl_config__verifier_function": ["acc_for_dapo"],
        "rl_config__overlong_buffer_enable": True,
        "rl_config__rollout_max_tokens": 20480,
        "rl_config__overlong_buffer": 4096,
        "rl_config__filter_groups_enable": True,
        "rl_config__filter_groups_metric": "acc_for_dapo",
        "rl_config__filter_groups_max_batches": -1,
        "rl_config__filter_groups_train_batch_size": 64,
    }
    config = config_of("mindspeed-rl", **keys)
    assert config.algorithm.kl.coefficient == 0
    assert section(config.algorithm.loss)["clip_high"] == 0.28
    assert config.reward.rules["overlong"].options == {"max_tokens": 20480, "buffer": 4096}
    assert config.algorithm.dynamic_sampling
    assert config.algorithm.dynamic_sampling.term == "acc_for_dapo"
    assert config.algorithm.dynamic_sampling.max_replaced == 1000
    assert (config.run.groups_per_step, config.algorithm.updates_per_batch) == (64, 2)


def test_an_actors_key_goes_before_the_common_one() -> None:
    keys = {
        "megatron_training__tensor_model_parallel_size": 8,
        "actor_config__tensor_model_parallel_size": 2,
    }
    config = config_of("mindspeed-rl", **keys, megatron_training__sequence_parallel=True)
    assert (config.trainer.tensor_parallel, config.trainer.sequence_parallel) == (2, True)
    assert config_of("mindspeed-rl", actor_config__lr=5e-6).trainer.learning_rate == 5e-6
    load = {"actor_config__load": "./ckpt", "actor_config__finetune": False}
    assert list(converted("mindspeed-rl", **load).having("refused")) == ["actor_config.load"]


def test_experts_that_tensor_ranks_take_too_are_on_more_ranks() -> None:
    keys = {
        "actor_config__tensor_model_parallel_size": 4,
        "actor_config__expert_model_parallel_size": 8,
        "actor_config__moe_tp_extend_ep": True,
        "rl_config__actor_resource__num_npus": 256,
        "generate_config__infer_tensor_parallel_size": 4,
    }
    assert config_of("mindspeed-rl", **keys).trainer.expert_parallel == 32
    keys["actor_config__moe_tp_extend_ep"] = False
    trainer = config_of("mindspeed-rl", **keys).trainer
    assert (trainer.expert_parallel, trainer.expert_tensor_parallel) == (8, 4)


@pytest.mark.parametrize(("given", "slices"), [(None, 2), (1, 1), (2, 2)])
def test_experts_are_split_as_megatron_splits_them(given: int | None, slices: int) -> None:
    """By default as the rest of the model."""
    mcore = "actor_rollout_ref__actor__megatron"
    keys = {
        "actor_rollout_ref__actor__strategy": "megatron",
        f"{mcore}__tensor_model_parallel_size": 2,
        f"{mcore}__expert_model_parallel_size": 4,
        f"{mcore}__expert_tensor_parallel_size": given,
        "trainer__n_gpus_per_node": 32,
    }
    trainer = config_of("verl", **keys).trainer
    assert (trainer.expert_parallel, trainer.expert_tensor_parallel) == (4, slices)
    keys[f"{mcore}__expert_model_parallel_size"] = 1
    keys[f"{mcore}__expert_tensor_parallel_size"] = None
    assert config_of("verl", **keys).trainer.expert_tensor_parallel == 1


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("verl", {"algorithm__adv_estimator": "gae"}, "critic"),
        ("easyr1", {"algorithm__adv_estimator": "gae"}, "critic"),
        ("mindspeed-rl", {"megatron_training__stage": "dpo"}, "no pairs"),
        ("verl", {"actor_rollout_ref__rollout__top_p": 0.9}, "give 1"),
        ("verl", {"actor_rollout_ref__rollout__name": "sglang"}, "give vllm"),
        ("verl", {"reward_model__enable": True}, "docs/reward-plugins.md"),
        ("verl", {"trainer__v1__trainer_mode": "separate_async"}, "run.max_lag"),
        ("easyr1", {"data__train_files": "hiyouga/geometry3k@train"}, "trimaran data prepare"),
        ("easyr1", {"data__format_prompt": "./examples/format_prompt/math.jinja"}, "template"),
        (
            "easyr1",
            {"trainer__max_steps": None, "worker__actor__optim__lr_warmup_ratio": 0.1},
            "give trainer.max_steps=N",
        ),
        (
            "verl",
            {"trainer__total_training_steps": None, "data__gen_batch_size": 512}
            | {"algorithm__filter_groups__enable": True},
            "give trainer.total_training_steps=N",
        ),
        ("mindspeed-rl", {"megatron_training__data_path": "./dataset/data"}, "prefix"),
        ("mindspeed-rl", {"rl_config__verifier_function": ["acurracy"]}, "verifiers are"),
        (
            "mindspeed-rl",
            {"actor_config__load": "./ckpt", "actor_config__finetune": False},
            "finetune=true",
        ),
        ("verl", {"actor_rollout_ref__actor__grad_clip": "much"}, "is no value"),
        (
            "mindspeed-rl",
            {
                "megatron_training__stage": "ray_dapo",
                "rl_config__filter_groups_enable": True,
                "rl_config__filter_groups_train_batch_size": 48,
            },
            "give a rl_config.mini_batch_size that divides 48",
        ),
        ("mindspeed-rl", {"megatron_training__train_iters": None}, "give megatron_training.train"),
        ("mindspeed-rl", {"megatron_training__weight_decay": None}, "their default is 0.01"),
        ("verl", {"actor_rollout_ref__actor__optim__weight_decay": None}, "their default is 0.01"),
        (
            "verl",
            {"actor_rollout_ref__rollout__gpu_memory_utilization": None},
            "null is no value for it: give one",
        ),
    ],
)
def test_what_would_change_the_training_is_refused_with_what_to_do(
    name: str, keys: dict[str, Any], words: str
) -> None:
    refused = " ".join(converted(name, **keys).having("refused").values())
    assert words in refused


def test_steps_follow_from_the_rows(tmp_path: Path) -> None:
    """EasyR1's guide: 2,100 rows // 256 are 8 steps an epoch."""
    rows = tmp_path / "geo3k.jsonl"
    rows.write_text("".join(f'{{"prompt": "{n}", "answer": "1"}}\n' for n in range(2100)))
    keys: dict[str, Any] = {
        "data__train_files": str(rows),
        "data__rollout_batch_size": 256,
        "worker__actor__global_batch_size": 64,
        "trainer__max_steps": None,
        "trainer__total_episodes": 15,
        "worker__actor__optim__lr_warmup_ratio": 0.1,
    }
    config = config_of("easyr1", **keys)
    assert (config.run.steps, config.trainer.warmup_steps) == (15 * 8, 12)
    assert config.run.checkpoint_every == config.validation.every == 120


@pytest.mark.parametrize(("total", "steps"), [(None, 8), (5, 5), (8, 8), (100, 8)])
def test_verls_run_ends_with_its_epochs_or_its_steps(
    tmp_path: Path, total: int | None, steps: int
) -> None:
    """Its loop is over the epochs, and leaves it at total_training_steps (ray_trainer.py, fit)."""
    rows = tmp_path / "rows.parquet"
    table = {"prompt": ["a"] * 70, "answer": ["1"] * 70, "data_source": ["openai/gsm8k"] * 70}
    parquet.write_table(pyarrow.table(table), rows)
    keys: dict[str, Any] = {
        "data__train_files": str(rows),
        "data__train_batch_size": 16,
        "actor_rollout_ref__actor__ppo_mini_batch_size": 16,
        "actor_rollout_ref__actor__optim__lr_warmup_steps_ratio": 0.1,
        "trainer__total_epochs": 2,
        "trainer__total_training_steps": total,
    }
    made = converted("verl", **keys)
    assert made.tree["run"]["steps"] == steps
    # Their ratio is of the greater number.
    assert made.tree["trainer"]["warmup_steps"] == (total or steps) // 10
    assert ("end before" in made.having("noted").get("trainer.total_epochs", "")) == (total == 100)
    falling: dict[str, Any] = {"actor_rollout_ref__actor__optim__lr_scheduler_type": "cosine"}
    told = converted("verl", **keys, **falling).having("noted").get("trainer.total_epochs", "")
    assert ("over 8 steps here" in told) == (total == 100)


def test_steps_that_cannot_be_counted_here_are_the_runs_epochs() -> None:
    keys: dict[str, Any] = {"data__train_files": "away.parquet", "trainer__max_steps": None}
    made = converted("easyr1", **keys, trainer__total_epochs=4, trainer__val_freq=-1)
    assert "the run counts them" in made.having("noted")["trainer.total_epochs"]
    assert (made.tree["run"]["epochs"], made.tree["run"].get("steps")) == (4, None)
    assert made.tree["validation"]["every"] == MAX_COUNT, "at the end alone, wherever that is"
    older = converted("easyr1", **keys, trainer__total_episodes=15)
    assert "trainer.total_episodes" in older.having("noted")
    assert older.tree["run"]["epochs"] == 15


@pytest.mark.parametrize(
    ("threshold", "cap", "token_bounds"),
    [(3, 3.0, None), ("3.0", 3.0, None), ("0.5_4.0", None, [0.5, 4.0])],
)
def test_verls_threshold_is_a_cap_or_two_bounds(
    threshold: Any, cap: float | None, token_bounds: list[float] | None
) -> None:
    prefix = "algorithm__rollout_correction__rollout_is"
    keys = {prefix: "token", f"{prefix}_threshold": threshold}
    found = section(config_of("verl", **keys).algorithm.correction)
    assert (found["weights"], found["cap"], found["token_bounds"]) == ("token", cap, token_bounds)


@pytest.mark.parametrize("threshold", ["0.5_4.0", "half"])
def test_verls_threshold_is_refused_under_its_own_key(threshold: str) -> None:
    prefix = "algorithm__rollout_correction__rollout_is"
    keys: dict[str, Any] = {prefix: "sequence", f"{prefix}_threshold": threshold}
    refused = converted("verl", **keys).having("refused")
    assert {key for key in refused if "rollout_is" in key} == {
        "algorithm.rollout_correction.rollout_is_threshold"
    }


def test_verls_reward_follows_from_the_rows_source(tmp_path: Path) -> None:
    def rows_of(*sources: str) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet"
        parquet.write_table(pyarrow.table({"data_source": list(sources)}), path)
        return str(path)

    geometry = config_of(
        "verl",
        data__train_files=rows_of("hiyouga/geometry3k", "hiyouga/geometry3k"),
        data__train_batch_size=256,
    )
    assert list(geometry.reward.rules) == ["geo3k"]
    mixed = converted("verl", data__train_files=rows_of("openai/gsm8k", "hiyouga/geometry3k"))
    assert mixed.tree["data"]["task_key"] == "data_source"
    assert mixed.tree["reward"]["rules"] == {
        "geo3k": {"weight": 1.0, "tasks": ["hiyouga/geometry3k"]},
        "gsm8k": {"weight": 1.0, "tasks": ["openai/gsm8k"]},
    }
    other = converted("verl", data__train_files=rows_of("mine"))
    assert "data_source is mine" in other.having("refused")["custom_reward_function.path"]
    nested = pyarrow.table({"prompt": ["1 + 1?"], "reward_model": [{"ground_truth": "2"}]})
    parquet.write_table(nested, tmp_path / "gsm8k.parquet")
    raw = converted("verl", data__train_files=str(tmp_path / "gsm8k.parquet"))
    assert raw.tree["data"]["answer_key"] == "reward_model.ground_truth"
    unnamed = tmp_path / "mine.parquet"
    parquet.write_table(pyarrow.table({"prompt": ["1 + 1?"], "answer": ["2"]}), unnamed)
    text = converted("verl", data__train_files=str(unnamed)).having("refused")
    assert "mine.parquet tells none: prepare it" in text["custom_reward_function.path"]
    # Without the file its name tells, as verl's preparation writes it.
    assert list(config_of("verl").reward.rules) == ["gsm8k"]
    away = config_of("verl", data__train_files="x.parquet")
    assert away.reward.rules["gsm8k"].tasks == ("openai/gsm8k",)
    assert away.reward.rules["boxed_equal"].tasks[-1] == "HuggingFaceH4/MATH-500"
    assert away.data.train[0].task_key == "data_source"


def test_a_function_of_the_users_is_named_with_its_options() -> None:
    keys = {
        "custom_reward_function__path": "rewards/mine.py",
        "custom_reward_function__name": "score",
        "custom_reward_function__reward_kwargs__scale": 2,
    }
    made = converted("verl", **keys)
    rule = made.tree["reward"]["rules"]["score"]
    assert rule["function"] == f"{Path('rewards/mine.py').absolute()}:score"
    assert rule["options"] == {"scale": 2}
    assert "--allow" in made.having("noted")["custom_reward_function.path"]


def test_easyr1s_own_functions_are_rules() -> None:
    keys = {
        "worker__reward__reward_function": "./examples/reward_function/dapo.py:compute_score",
        "worker__reward__reward_function_kwargs__max_response_length": 20480,
        "worker__reward__reward_function_kwargs__overlong_buffer_length": 4096,
        "worker__reward__reward_function_kwargs__overlong_penalty_factor": 1.0,
    }
    rule = config_of("easyr1", **keys).reward.rules["dapo"]
    assert rule.options == {"max_tokens": 20480, "buffer": 4096, "factor": 1.0}
    older = config_of(
        "easyr1", worker__reward__reward_function=None, worker__reward__compute_score="r1v"
    )
    assert list(older.reward.rules) == ["r1v"]


def test_moments_in_bfloat16_get_a_beta_that_works() -> None:
    made = converted(
        "easyr1",
        worker__actor__optim__strategy="adamw_bf16",
        worker__actor__optim__betas=[0.9, 0.999],
    )
    assert made.tree["trainer"]["beta2"] == 0.99
    assert "0.99 is taken" in made.having("noted")["worker.actor.optim.betas"]


def test_adapters_have_megatrons_names_too() -> None:
    keys = {
        "megatron_training__lora_r": 64,
        "megatron_training__lora_target_modules": ["linear_qkv", "linear_fc2"],
    }
    lora = config_of("mindspeed-rl", **keys).trainer.lora
    assert lora and (lora.rank, lora.targets) == (64, ("q_proj", "k_proj", "v_proj", "down_proj"))
    unknown = converted(
        "verl",
        actor_rollout_ref__model__lora_rank=8,
        actor_rollout_ref__model__target_modules="qproj",
    )
    assert "adapters go to" in unknown.having("refused")["actor_rollout_ref.model.lora_rank"]


def test_what_is_computed_again_is_what_theirs_names() -> None:
    key = "actor_rollout_ref__actor__megatron__override_transformer_config__recompute_granularity"
    for theirs, ours in (("full", True), ("selective", "selective"), (None, False)):
        assert config_of("verl", **{key: theirs}).trainer.recompute == ours
        keys = {"megatron_training__recompute_granularity": theirs}
        assert config_of("mindspeed-rl", **keys).trainer.recompute == ours


def test_losses_that_are_of_whole_answers_take_their_mean() -> None:
    config = config_of("verl", actor_rollout_ref__actor__policy_loss__loss_mode="gspo")
    assert section(config.algorithm.aggregation) == {"type": "sequence_mean"}
    assert section(config_of("verl").algorithm.aggregation) == {"type": "token_mean"}


def test_a_run_that_never_validates_has_no_held_out_file() -> None:
    quiet = {"trainer__test_freq": -1, "trainer__val_before_train": False}
    assert config_of("verl", data__val_files="test.parquet", **quiet).data.validation in (None, ())
    assert (
        config_of("verl", data__val_files="test.parquet", trainer__test_freq=5).validation.every
        == 5
    )


@pytest.mark.parametrize("name", ["verl", "easyr1"])
def test_the_validation_before_training_is_left_out_as_there(name: str) -> None:
    every = {"verl": "trainer__test_freq", "easyr1": "trainer__val_freq"}[name]
    keys = {"data__val_files": "test.parquet", every: 5}
    assert config_of(name, **keys).validation.before_train
    quiet = config_of(name, **keys, trainer__val_before_train="False")
    assert not quiet.validation.before_train
    assert quiet.data.validation


@pytest.mark.parametrize("name", ["verl", "easyr1"])
def test_a_run_that_only_validates_stays_one(name: str) -> None:
    every = {"verl": "trainer__test_freq", "easyr1": "trainer__val_freq"}[name]
    quiet = {every: -1, "trainer__val_before_train": False}
    config = config_of(name, data__val_files="test.parquet", trainer__val_only=True, **quiet)
    assert config.validation.only
    assert config.data.validation
    assert not config_of(name, trainer__val_only=False).validation.only


def test_samples_of_a_validation_are_drawn_as_theirs() -> None:
    keys: dict[str, Any] = {"do_sample": True, "n": 8, "temperature": 0.6, "top_p": 0.95}
    prefix = "actor_rollout_ref__rollout__val_kwargs"
    verl = config_of("verl", **{f"{prefix}__{key}": value for key, value in keys.items()})
    assert (verl.validation.samples, verl.validation.final_samples) == (8, 8)
    assert (verl.validation.temperature, verl.validation.top_p) == (0.6, 0.95)
    prefix = "worker__rollout__val_override_config"
    keys = {"n": 2, "temperature": 0.2, "top_p": 0.7, "max_tokens": 64}
    easyr1 = config_of("easyr1", **{f"{prefix}__{key}": value for key, value in keys.items()})
    section = easyr1.validation
    assert (section.samples, section.temperature) == (2, 0.2)
    assert (section.top_p, section.max_tokens) == (0.7, 64)


def test_answers_are_shown_where_a_sink_is_named() -> None:
    key = "trainer__log_val_generations"
    both = config_of("verl", **{key: 5, "trainer__logger": ["console", "wandb"]})
    assert (both.validation.logged, both.metrics.sinks) == (5, ("wandb",))
    assert config_of("verl", **{key: 5, "trainer__logger": ["console"]}).validation.logged == 0


def test_images_come_from_the_column_that_the_rows_have(tmp_path: Path) -> None:
    rows = pyarrow.table({"prompt": ["<image>Which?"], "answer": ["A"], "images": [[b"x"]]})
    with_images, without = tmp_path / "geo3k.parquet", tmp_path / "math.parquet"
    parquet.write_table(rows, with_images)
    parquet.write_table(rows.drop(["images"]), without)
    keys: dict[str, Any] = {
        "data__image_key": "images",
        "data__min_pixels": 65536,
        "data__max_pixels": 262144,
        "worker__rollout__limit_images": 1,
    }
    made = converted("easyr1", data__train_files=str(with_images), **keys).tree
    assert (made["data"]["image_key"], made["rollout"]["limit_images"]) == ("images", 1)
    assert (made["data"]["min_pixels"], made["data"]["max_pixels"]) == (65536, 262144)
    assert (
        "image_key" not in converted("easyr1", data__train_files=str(without), **keys).tree["data"]
    )
    away = converted("verl", data__image_key="images")
    assert "~data.image_key" in away.having("noted")["data.image_key"]
    assert "image_key" not in converted("verl").tree["data"]


def test_several_files_are_a_list_with_all_of_their_rows(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("one.jsonl", "two.jsonl")]
    for file in files:
        Path(file).write_text('{"prompt": "1 + 1?", "answer": "2"}\n' * 600)
    keys: dict[str, Any] = {"data__train_files": files, "trainer__max_steps": None}
    made = converted(
        "easyr1", data__rollout_batch_size=512, worker__actor__global_batch_size=128, **keys
    )
    assert made.tree["data"]["train"] == files
    assert made.tree["run"]["steps"] == 15 * (1200 // 512)


def test_verls_loader_says_how_many_prompts_a_step_has(tmp_path: Path) -> None:
    rows = tmp_path / "train.jsonl"
    rows.write_text('{"prompt": "1", "answer": "1"}\n' * 24)
    keys: dict[str, Any] = {
        "data__train_files": str(rows),
        "data__train_batch_size": 4,
        "data__gen_batch_size": 8,
        "actor_rollout_ref__actor__ppo_mini_batch_size": 4,
        "trainer__total_training_steps": None,
        "trainer__total_epochs": 1,
        "reward__custom_reward_function__path": "r.py",
    }
    tree = converted("verl", **keys).tree
    assert (tree["run"]["groups_per_step"], tree["run"]["steps"]) == (8, 3)
    assert tree["algorithm"]["updates_per_batch"] == 2
    tree = converted("verl", **keys, algorithm__filter_groups__enable=True).tree
    assert (tree["run"]["groups_per_step"], tree["run"]["steps"]) == (4, 3)


@pytest.mark.parametrize("section", ["", "megatron__"])
def test_verls_r3_is_the_routers_replay(section: str) -> None:
    mode = f"actor_rollout_ref__actor__{section}router_replay__mode"
    engine = "actor_rollout_ref__rollout__enable_rollout_routing_replay"
    plain = config_of("verl", actor_rollout_ref__actor__grad_clip=0.5).trainer
    keys: dict[str, Any] = {mode: "R3", engine: True, "actor_rollout_ref__actor__grad_clip": 0.5}
    trainer = config_of("verl", **keys).trainer
    assert trainer.router.replay and not plain.router.replay
    assert (trainer.clip_grad, trainer.recompute) == (plain.clip_grad, plain.recompute)
    wrongs: list[dict[str, Any]] = [{mode: "R2", engine: True}, {mode: "R3"}]
    for wrong in wrongs:
        assert mode.replace("__", ".") in converted("verl", **wrong).having("refused")


@pytest.mark.parametrize(
    ("key", "same", "other"),
    [
        ("actor_rollout_ref.actor.optim.lr_decay_steps", None, 7),
        ("actor_rollout_ref.actor.optim.num_cycles", 0.5, 1.5),
        ("actor_rollout_ref.actor.optim.lr_warmup_init", 0.0, 1e-7),
        ("actor_rollout_ref.actor.optim.weight_decay_incr_style", "constant", "linear"),
        ("actor_rollout_ref.actor.optim.optimizer_impl", "torch.optim", "bitsandbytes.optim"),
        ("actor_rollout_ref.model.lora.freeze_vision_model", True, False),
        ("actor_rollout_ref.model.lora.adapter_path", None, "adapter"),
        ("actor_rollout_ref.model.lora.type", "canonical_lora", "dora"),
        ("trainer.critic_warmup", 1, 20),
    ],
)
def test_what_would_train_otherwise_is_refused(key: str, same: Any, other: Any) -> None:
    schedule = {"actor_rollout_ref__actor__optim__lr_scheduler_type": "cosine"}
    word = key.replace(".", "__")
    assert key in converted("verl", **schedule, **{word: same}).having("ignored")
    assert key in converted("verl", **schedule, **{word: other}).having("refused")


def test_how_a_rate_falls_does_not_matter_where_it_holds() -> None:
    optim = "actor_rollout_ref__actor__optim__"
    keys: dict[str, Any] = {f"{optim}lr_decay_steps": 7, f"{optim}num_cycles": 1.5}
    assert not [key for key in converted("verl", **keys).having("refused") if "optim" in key]
    keys = {f"{optim}lr_decay_steps": 7, f"{optim}lr_decay_style": "linear"}
    keys["trainer__total_training_steps"] = 7
    assert not [key for key in converted("verl", **keys).having("refused") if "optim" in key]


@pytest.mark.parametrize(
    ("name", "key", "where"),
    [
        ("verl", "actor_rollout_ref.actor.use_kl_loss", "actor_rollout_ref.actor.use_kl_loss"),
        ("verl", "algorithm.use_kl_in_reward", "actor_rollout_ref.actor.use_kl_loss"),
        ("easyr1", "algorithm.disable_kl", "algorithm.kl_coef"),
        ("easyr1", "algorithm.online_filtering", "algorithm.online_filtering"),
        ("mindspeed-rl", "megatron_training.no_shuffle", "megatron_training.no_shuffle"),
        ("mindspeed-rl", "actor_config.finetune", "actor_config.load"),
    ],
)
def test_what_is_neither_true_nor_false_is_refused_with_its_key(
    name: str, key: str, where: str
) -> None:
    keys: dict[str, Any] = {"actor_config__load": "x"} if name == "mindspeed-rl" else {}
    changed = key.replace(".", "__")
    keys[changed] = "maybe"
    refused = converted(name, **keys).having("refused")
    said = f"{where}: {refused[where]}"
    assert f"{key}: 'maybe' is neither on (true, yes, on, 1) nor off (false, no, off, 0" in said
    for word in ("yes", "Off", 0, None, "TRUE"):
        keys[changed] = word
        refused = converted(name, **keys).having("refused")
        assert [text for text in refused.values() if "neither" in text] == []


def test_verls_options_of_the_chat_template_are_ours() -> None:
    key = "data__apply_chat_template_kwargs__"
    given: dict[str, Any] = {f"{key}enable_thinking": "False", f"{key}reasoning_effort": "low"}
    kwargs = config_of("verl", **given).data.chat_template_kwargs
    assert kwargs == {"enable_thinking": False, "reasoning_effort": "low"}
    unknown: dict[str, Any] = {f"{key}effort": 1}
    refused = converted("verl", **unknown).having("refused")
    assert "data.chat_template_kwargs" in refused["data.apply_chat_template_kwargs.effort"]


def test_easyr1s_cispo_may_have_no_weight_below_1() -> None:
    keys = {"worker__actor__clip_ratio_low": 0, "worker__actor__clip_ratio_high": 4}
    loss = config_of("easyr1", worker__actor__loss_type="cispo", **keys).algorithm.loss
    assert section(loss) == {"type": "cispo", "clip_low": 0.0, "clip_high": 4.0}


def test_mindspeeds_filter_looks_at_a_verifier_only_where_there_is_one() -> None:
    metric = "acc_for_dapo"
    keys: dict[str, Any] = {
        "megatron_training__stage": "ray_dapo",
        "rl_config__filter_groups_enable": True,
        "rl_config__filter_groups_train_batch_size": 16,
        "rl_config__filter_groups_metric": metric,
        "rl_config__verifier_function": [metric],
        "rl_config__mini_batch_size": 16,
    }
    images = {"rl_config__is_multimodal": True}
    for more, term in (({}, metric), (images, None)):
        sampling = config_of("mindspeed-rl", **keys, **more).algorithm.dynamic_sampling
        assert sampling and sampling.term == term


@pytest.fixture
def ten_layers(tmp_path: Path) -> str:
    """A model's folder, as far as it is looked at."""
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 10}))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("stages", "ends", "layers"),
    [
        (2, {"first": 4}, (4, 6)),
        (3, {"last": 2}, (4, 4, 2)),
        (4, {"first": 1, "last": 3}, (1, 3, 3, 3)),
        (2, {"first": 4, "last": 6}, (4, 6)),
        (1, {"first": 4}, ()),
    ],
)
def test_verls_first_and_last_stages(
    stages: int, ends: dict[str, int], layers: tuple[int, ...], ten_layers: str
) -> None:
    config = config_of(
        "verl", **verls_stages(stages, ends), actor_rollout_ref__model__path=ten_layers
    )
    assert config.trainer.pipeline_layers == layers


def verls_stages(stages: int, ends: dict[str, int]) -> dict[str, Any]:
    section = "actor_rollout_ref__actor__megatron__"
    return {
        "trainer__n_gpus_per_node": 16,
        f"{section}pipeline_model_parallel_size": stages,
        **{
            f"{section}override_transformer_config__num_layers_in_{end}_pipeline_stage": size
            for end, size in ends.items()
        },
    }


def test_verls_stages_that_cannot_be_counted_or_shared_are_told(ten_layers: str) -> None:
    key = (
        "actor_rollout_ref.actor.megatron.override_transformer_config"
        ".num_layers_in_first_pipeline_stage"
    )
    away = converted("verl", **verls_stages(2, {"first": 4}))
    assert "give trainer.pipeline_layers" in away.having("noted")[key]
    folder: dict[str, Any] = {"actor_rollout_ref__model__path": ten_layers}
    refused = converted("verl", **verls_stages(3, {"first": 3}), **folder)
    assert refused.having("refused")[key].startswith("10 layers without the 3 + 0 of the first")
    more = converted("verl", **verls_stages(2, {"first": 3, "last": 8}), **folder)
    assert more.having("refused")[key].endswith("by the other 0")
    virtual: dict[str, Any] = {
        "actor_rollout_ref__actor__megatron__virtual_pipeline_model_parallel_size": 2
    }
    both = converted("verl", **verls_stages(2, {"first": 4}), **folder | virtual)
    assert "equally many" in both.having("noted")[key]
    assert "pipeline_layers" not in both.tree["trainer"]


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({"num_layer_list": "1,3,4,2"}, (1, 3, 4, 2)),
        ({"num_layer_list": [1, 3, 4, 2]}, (1, 3, 4, 2)),
        ({"noop_layers": "10,11"}, (3, 3, 3, 1)),
        ({"noop_layers": "0,11"}, (2, 3, 3, 2)),
        ({"noop_layers": "0,11", "pipeline_model_parallel_size": 1}, ()),
        ({"num_layer_list": "10", "pipeline_model_parallel_size": 1}, ()),
    ],
)
def test_mindspeed_rls_stages(
    keys: dict[str, Any], layers: tuple[int, ...], ten_layers: str
) -> None:
    given = {"pipeline_model_parallel_size": 4, "tokenizer_name_or_path": ten_layers, **keys}
    section = {f"actor_config__{key}": value for key, value in given.items()}
    config = config_of("mindspeed-rl", **section, rl_config__actor_resource__num_npus=16)
    assert config.trainer.pipeline_layers == layers


def test_mindspeed_rls_layers_that_do_nothing_must_fill_the_stages(ten_layers: str) -> None:
    given = {"pipeline_model_parallel_size": 4, "tokenizer_name_or_path": ten_layers}
    section = {f"actor_config__{key}": value for key, value in given.items()}
    made = converted("mindspeed-rl", **section, actor_config__noop_layers="0")
    assert made.having("refused")["actor_config.noop_layers"] == (
        "10 layers and 1 that do nothing give no 4 equal stages"
    )


def test_a_system_prompt_on_top_of_words_in_the_rows_is_told(tmp_path: Path) -> None:
    rows, card = tmp_path / "train.jsonl", tmp_path / "train.card.json"
    rows.write_text("{}\n")

    def fate_of(words: str, system: str | None = None) -> str:
        template = {"before": "", "after": words, "system": system}
        card.write_text(json.dumps({"plan": {"template": template}}))
        made = converted("easyr1", data__train_files=str(rows), data__system_prompt="Think.")
        assert made.tree["data"]["system"] == "Think."
        return made.outcomes["data.system_prompt"].fate

    assert (fate_of(" Think first."), fate_of("")) == ("noted", "mapped")
    assert fate_of("", system="Think first.") == "noted"


@pytest.mark.parametrize(
    ("filtered", "fate"), [(True, "ignored"), (False, "refused"), ("false", "refused")]
)
def test_where_longer_prompts_are_filtered_none_is_cut(filtered: object, fate: str) -> None:
    made = converted("verl", data__truncation="left", data__filter_overlong_prompts=filtered)
    assert made.outcomes["data.truncation"].fate == fate


@pytest.mark.parametrize(
    ("model", "is_on_hub"), [("Qwen/Qwen2.5-7B", True), ("./Qwen2.5-7B", False), ("/m/q", False)]
)
def test_a_hub_is_named_for_what_it_may_have(model: str, is_on_hub: bool) -> None:
    made = converted("easyr1", worker__actor__model__model_path=model)
    text = made.outcomes["worker.actor.model.model_path"].text
    assert ("hf download" in text) == is_on_hub


OVERRIDE = "actor_rollout_ref__actor__optim__override_optimizer_config"
FSDP = "actor_rollout_ref__actor__fsdp_config"
MCORE = "actor_rollout_ref__actor__megatron"


def test_verls_adamw_has_the_numbers_that_its_trainer_reads() -> None:
    def adamw(**given: Any) -> tuple[float, float, float]:
        trainer = config_of("verl", **given).trainer
        return trainer.beta1, trainer.beta2, trainer.epsilon

    betas: dict[str, Any] = {"actor_rollout_ref__actor__optim__betas": [0.9, 0.95]}
    assert adamw(**betas) == (0.9, 0.95, 1e-8)
    fsdp: dict[str, Any] = {f"{OVERRIDE}__betas": [0.8, 0.98], f"{OVERRIDE}__eps": 1e-15}
    assert adamw(**betas, **fsdp) == (0.8, 0.98, 1e-15)
    megatron: dict[str, Any] = {"actor_rollout_ref__actor__strategy": "megatron"}
    assert adamw(**megatron, **betas) == (0.9, 0.999, 1e-8)
    key = "actor_rollout_ref.actor.optim.betas"
    assert "does not read it" in converted("verl", **megatron, **betas).having("noted")[key]
    own: dict[str, Any] = {f"{OVERRIDE}__adam_beta2": 0.95, f"{OVERRIDE}__adam_eps": 1e-10}
    assert adamw(**megatron, **betas, **own) == (0.9, 0.95, 1e-10)
    assert key not in converted("verl", **megatron, **betas, **own).having("noted")


def test_mindspeeds_epsilon_counts() -> None:
    assert config_of("mindspeed-rl", actor_config__adam_eps=1e-10).trainer.epsilon == 1e-10


@pytest.mark.parametrize(
    ("system", "key", "value", "remedy"),
    [
        ("verl", f"{OVERRIDE}__amsgrad", True, "give false"),
        ("verl", f"{OVERRIDE}__weight_decay", 0.1, "optim's lr, weight_decay and betas"),
        ("verl", f"{OVERRIDE}__exp_avg_dtype", "bf16", "give float32"),
        ("verl", "actor_rollout_ref__actor__optim__exp_avg_sq_dtype", "bf16", "give float32"),
        ("verl", f"{OVERRIDE}__decoupled_weight_decay", False, "give true"),
        ("verl", f"{FSDP}__dtype", "float16", "give bfloat16"),
        ("verl", f"{FSDP}__mixed_precision__param_dtype", "fp32", "give bfloat16"),
        ("verl", f"{FSDP}__qat__enable", True, "not quantized"),
        ("verl", f"{MCORE}__dtype", "float16", "give bfloat16"),
        ("verl", f"{MCORE}__qat__enable", True, "not quantized"),
        ("verl", f"{MCORE}__override_mcore_model_config__num_layers", 2, "config.json"),
        ("verl", "actor_rollout_ref__ref__model__path", "other", "set trainer.load"),
        ("verl", "actor_rollout_ref__rollout__response_length", 64, "data.max_response_length=64"),
        ("verl", "actor_rollout_ref__rollout__agent__default_agent_loop", "tool_agent", "one turn"),
        ("verl", "actor_rollout_ref__model__external_lib", "models.mine", "is not loaded"),
        ("verl", "actor_rollout_ref__model__hf_config_path", "other", "put it there"),
        ("verl", "data__train_max_samples", 100, "--limit 100"),
        ("verl", "data__datagen__path", "make.py", "before the run"),
        ("verl", "reward_model__reward_manager", "mine", "a reward is a function here"),
        ("verl", "reward__reward_manager__module__path", "mine.py", "a reward is a function here"),
        ("mindspeed-rl", "rl_config__reward_resource__num_npus", 8, "serve one over HTTP"),
        ("mindspeed-rl", "megatron_training__split", "90,5,5", "--hold-out N"),
        ("easyr1", "worker__actor__fsdp__mp_param_dtype", "fp32", "give bfloat16"),
    ],
)
def test_what_would_train_another_model_is_refused(
    system: str, key: str, value: Any, remedy: str
) -> None:
    assert remedy in converted(system, **{key: value}).having("refused")[key.replace("__", ".")]


@pytest.mark.parametrize(
    ("system", "key", "value", "text"),
    [
        ("verl", f"{FSDP}__model_dtype", "bf16", "adamw_bf16 keeps such weights"),
        ("verl", f"{FSDP}__mixed_precision__reduce_dtype", "bf16", "in float32"),
        ("verl", f"{MCORE}__override_ddp_config__grad_reduce_in_fp32", False, "in float32"),
        ("verl", "actor_rollout_ref__rollout__max_model_len", 1000, "1000 tokens together"),
        ("easyr1", "worker__actor__fsdp__torch_dtype", "bf16", "adamw_bf16 keeps such weights"),
        ("easyr1", "worker__rollout__max_model_len", 1000, "1000 tokens together"),
        ("mindspeed-rl", "generate_config__max_model_len", 2200, "2200 tokens together"),
        ("mindspeed-rl", "rl_config__partial_rollout_max_split", 2, "run.max_lag above 0"),
    ],
)
def test_what_trains_a_little_differently_is_told(
    system: str, key: str, value: Any, text: str
) -> None:
    assert text in converted(system, **{key: value}).having("noted")[key.replace("__", ".")]


def test_what_their_examples_say_of_the_same_goes_through() -> None:
    verl = {
        f"{OVERRIDE}__optimizer_cpu_offload": True,
        f"{OVERRIDE}__use_precision_aware_optimizer": True,
        f"{OVERRIDE}__decoupled_weight_decay": True,
        f"{FSDP}__dtype": "bfloat16",
        f"{FSDP}__model_dtype": "fp32",
        f"{MCORE}__dtype": "bfloat16",
        "actor_rollout_ref__ref__model__path": "qwen",
        "actor_rollout_ref__rollout__response_length": 512,
        "actor_rollout_ref__rollout__max_model_len": 1024,
        "actor_rollout_ref__model__exclude_modules": "layers.3",
        "reward_model__reward_manager": "dapo",
        "data__reward_fn_key": "source",
    }
    made = converted("verl", **verl)
    keys = {key.replace("__", ".") for key in verl}
    assert keys <= made.having("ignored").keys()
    both: dict[str, Any] = {
        "worker__actor__fsdp__torch_dtype": "bf16",
        "worker__actor__optim__strategy": "adamw_bf16",
    }
    assert "worker.actor.fsdp.torch_dtype" in converted("easyr1", **both).having("ignored")


def test_matrices_without_adapters_are_refused_where_there_are_adapters() -> None:
    key = "actor_rollout_ref.model.exclude_modules"
    for name, is_refused in ((".*visual.*", False), ("lm_head", True)):
        given: dict[str, Any] = {
            key.replace(".", "__"): name,
            "actor_rollout_ref__model__lora_rank": 8,
        }
        assert (key in converted("verl", **given).having("refused")) is is_refused
    easyr1: dict[str, Any] = {"worker__actor__model__lora__rank": 8}
    easyr1["worker__actor__model__lora__exclude_modules"] = ".*visual.*"
    assert converted("easyr1", **easyr1).having("refused") == {}
    easyr1["worker__actor__model__lora__exclude_modules"] = ["q_proj"]
    assert converted("easyr1", **easyr1).having("refused")


def test_a_function_gets_its_source_from_the_column_that_is_named_so() -> None:
    given: dict[str, Any] = {
        "data__reward_fn_key": "source",
        "custom_reward_function__path": "reward.py",
    }
    assert "call source so" in converted("verl", **given).having("refused")["data.reward_fn_key"]


def test_verls_overlong_penalty_counts_to_the_length_that_it_names() -> None:
    prefix = "reward_model__reward_kwargs"
    given: dict[str, Any] = {
        f"{prefix}__overlong_buffer_cfg__enable": True,
        f"{prefix}__overlong_buffer_cfg__len": 100,
        f"{prefix}__max_resp_len": 400,
    }
    options = config_of("verl", **given).reward.rules["overlong"].options
    assert options == {"buffer": 100, "max_tokens": 400}


def test_the_limit_of_rows_may_be_all_of_them(tmp_path: Path) -> None:
    rows = tmp_path / "gsm8k.parquet"
    parquet.write_table(
        pyarrow.table({"prompt": ["1 + 1"] * 4, "data_source": ["openai/gsm8k"] * 4}), rows
    )
    for most, is_refused in ((4, False), (-1, False), (3, True)):
        given: dict[str, Any] = {"data__train_files": str(rows), "data__train_max_samples": most}
        assert ("data.train_max_samples" in converted("verl", **given).having("refused")) is (
            is_refused
        )


@pytest.mark.parametrize(
    ("frozen", "patterns"),
    [
        (("vision_encoder", "vision_projector"), ("*visual.*",)),
        (("vision_encoder",), ("*visual.patch_embed.*", "*visual.blocks.*")),
        (("vision_projector",), ("*visual.merger.*",)),
        ((), ()),
    ],
)
def test_a_tower_that_mindspeed_mms_model_file_freezes_stays_as_it_is(
    tmp_path: Path, frozen: tuple[str, ...], patterns: tuple[str, ...]
) -> None:
    parts = {name: {"freeze": name in frozen} for name in ("vision_encoder", "vision_projector")}
    path = tmp_path / "qwen2.5vl_3b.json"
    path.write_text(json.dumps({"image_encoder": parts}))
    given: dict[str, Any] = {"model": str(path), "rl_config__is_multimodal": True}
    assert config_of("mindspeed-rl", **given).trainer.freeze == patterns
    path.write_text(json.dumps({"image_encoder": {"vision_encoder": {"freeze": "maybe"}}}))
    assert "neither on" in converted("mindspeed-rl", **given).having("refused")["model"]
    path.unlink()
    away = converted("mindspeed-rl", **given)
    assert "is not here" in away.having("noted")["model"]
    assert away.tree["trainer"]["freeze"] == ["*visual.*"]


def test_mindspeeds_reference_is_the_model_that_a_run_begins_with() -> None:
    key = "rl_config.integrated_mode_config.ref_model_load_path"
    given: dict[str, Any] = {key.replace(".", "__"): "./first", "actor_config__load": "./first"}
    assert key in converted("mindspeed-rl", **given).having("ignored")
    given["actor_config__load"] = "./later"
    assert "set trainer.load" in converted("mindspeed-rl", **given).having("noted")[key]
    other: dict[str, Any] = {"ref_config__load": "./first", "actor_config__load": "./later"}
    assert "ref_config.load" in converted("mindspeed-rl", **other).having("noted")


def test_mindspeed_rls_two_bounds_and_its_filter_are_dapos_alone() -> None:
    """Its GRPO reads clip_ratio alone and filters nothing (models/loss/grpo_actor_loss_func.py)."""
    keys: dict[str, Any] = {
        "rl_config__clip_higher_enable": True,
        "rl_config__clip_ratio_high": 0.28,
        "rl_config__filter_groups_enable": True,
        "rl_config__filter_groups_train_batch_size": 16,
    }
    made = converted("mindspeed-rl", **keys)
    loss = made.tree["algorithm"]["loss"]
    assert (loss["clip_low"], loss["clip_high"]) == (0.2, 0.2)
    assert "ray_dapo" in made.having("noted")["rl_config.clip_ratio"]
    assert "ray_dapo" in made.having("noted")["rl_config.filter_groups_enable"]
    assert "dynamic_sampling" not in made.tree["algorithm"]
    assert made.tree["run"]["groups_per_step"] == 32


def test_mindspeed_rls_mean_of_micro_batches_is_told() -> None:
    key = "rl_config.token_level_loss"
    assert "micro-batch" in converted("mindspeed-rl").having("noted")[key]


def test_easyr1_cuts_prompts_that_it_does_not_filter_and_somebody_is_told() -> None:
    key = "data.filter_overlong_prompts"
    off = converted("easyr1", data__filter_overlong_prompts=False)
    assert "cut" in off.having("noted")[key]
    assert key in converted("easyr1", data__filter_overlong_prompts=True).having("ignored")
    assert key not in converted("easyr1").having("noted")


def test_easyr1s_mean_of_sequences_weighs_micro_batches_by_tokens_and_somebody_is_told() -> None:
    key = "worker.actor.loss_avg_mode"
    made = converted("easyr1", worker__actor__loss_avg_mode="seq")
    assert made.tree["algorithm"]["aggregation"] == "sequence_mean"
    assert "micro-batch" in made.having("noted")[key]
    assert key not in converted("easyr1").having("noted")


def test_verls_sum_over_a_fixed_length_is_told_for_the_versions_that_differ() -> None:
    key = "actor_rollout_ref.actor.loss_agg_mode"
    made = converted("verl", actor_rollout_ref__actor__loss_agg_mode="seq-mean-token-sum-norm")
    assert made.tree["algorithm"]["aggregation"] == {"type": "fixed", "tokens": 512}
    assert "February 2026" in made.having("noted")[key]


def test_verls_kl_term_beside_a_loss_of_whole_sequences_is_told() -> None:
    key = "actor_rollout_ref.actor.loss_agg_mode"
    gspo: dict[str, Any] = {"actor_rollout_ref__actor__policy_loss__loss_mode": "gspo"}
    assert key not in converted("verl", **gspo).having("noted")
    kl = {**gspo, "actor_rollout_ref__actor__use_kl_loss": True}
    assert "KL" in converted("verl", **kl).having("noted")[key]
    assert converted("verl", **kl).tree["algorithm"]["aggregation"] == "sequence_mean"
    alike = {**kl, "actor_rollout_ref__actor__loss_agg_mode": "seq-mean-token-mean"}
    assert key not in converted("verl", **alike).having("noted")


def test_how_verls_megatron_begins_adapters_is_told_where_it_differs() -> None:
    key = "actor_rollout_ref.model.lora.lora_A_init_method"

    def made(method: str | None) -> Conversion:
        keys: dict[str, Any] = {"actor_rollout_ref__model__lora__rank": 8}
        if method:
            keys[key.replace(".", "__")] = method
        return converted("verl", **keys)

    for method in (None, "xavier", "normal"):
        assert "uniform" in made(method).having("noted")[key]
    assert key in made("kaiming").having("ignored")
    assert "nothing would train" in made("zero").having("refused")[key]
    # The FSDP trainer's adapters are peft's.
    assert key not in converted("verl", actor_rollout_ref__model__lora_rank=8).having("noted")
    assert key not in converted("verl").having("noted")


def test_a_router_in_other_numbers_is_told() -> None:
    key = "actor_rollout_ref.actor.megatron.override_transformer_config.moe_router_dtype"

    def made(kind: str | None, engine: str) -> Conversion:
        keys: dict[str, Any] = {key.replace(".", "__"): kind}
        return converted("verl", **keys, actor_rollout_ref__rollout__dtype=engine)

    assert "model.dtype" in made("fp32", "bfloat16").having("noted")[key]
    assert key in made(None, "bfloat16").having("ignored")
    assert key in made("fp32", "float32").having("ignored")


def test_a_box_that_verls_dapo_takes_is_told(tmp_path: Path) -> None:
    key = "custom_reward_function.path"
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"data_source": ["math_dapo"]}), path)
    assert "boxed" in converted("verl", data__train_files=str(path)).having("noted")[key]
    named = converted("verl", data__train_files="dapo-math-17k.parquet")
    assert "boxed" in named.having("noted")[key]
    parquet.write_table(pyarrow.table({"data_source": ["openai/gsm8k"]}), path)
    assert "boxed" not in converted("verl", data__train_files=str(path)).having("noted")[key]


def test_verls_penalty_of_long_answers_needs_its_length() -> None:
    buffer = "reward_model.reward_kwargs.overlong_buffer_cfg"
    on: dict[str, Any] = {f"{buffer}.enable".replace(".", "__"): True}
    refused = converted("verl", **on).having("refused")
    assert refused["custom_reward_function.path"].startswith(f"give {buffer}.len=N")
    on[f"{buffer}.len".replace(".", "__")] = 4096
    made = converted("verl", **on)
    assert made.tree["reward"]["rules"]["overlong"]["options"]["buffer"] == 4096


def write_rows(path: Path, number: int) -> str:
    table = {"prompt": ["a"] * number, "answer": ["1"] * number, "data_source": ["math"] * number}
    parquet.write_table(pyarrow.table(table), path)
    return str(path)


def test_verls_several_files_are_mixed_by_their_rows(tmp_path: Path) -> None:
    """There they are one list of rows, of which each comes once an epoch (utils/dataset/rl_dataset.py)."""
    files = [write_rows(tmp_path / "a.parquet", 40), write_rows(tmp_path / "b.parquet", 60)]
    keys: dict[str, Any] = {
        "data__train_files": files,
        "data__train_batch_size": 10,
        "actor_rollout_ref__actor__ppo_mini_batch_size": 10,
    }
    made = converted("verl", **keys)
    train = parse_config(made.tree).data.train
    assert [(str(one.path), one.weight) for one in train] == [(files[0], 2), (files[1], 3)]
    assert "data.train_files" not in made.having("noted")
    told = converted("verl", **keys, data__shuffle=False).having("noted")["data.train_files"]
    assert "one file follows the other" in told
    alone = converted("verl", **{**keys, "data__train_files": files[:1]}, data__shuffle=False)
    assert "data.train_files" not in alone.having("noted")


def test_verls_several_files_of_many_rows_are_mixed_nearly_by_their_rows(tmp_path: Path) -> None:
    files = [write_rows(tmp_path / f"{number}.parquet", number) for number in (7, 7473, 12000)]
    made = converted("verl", data__train_files=files)
    weights = [one.weight for one in parse_config(made.tree).data.train]
    assert weights == [1, 623, 1000]
    away = converted("verl", data__train_files=[files[0], str(tmp_path / "away.parquet")])
    assert "weight" in away.having("noted")["data.train_files"]


def test_held_out_rows_that_verl_draws_are_told(tmp_path: Path) -> None:
    key = "data.val_max_samples"
    keys: dict[str, Any] = {"data__val_files": write_rows(tmp_path / "val.parquet", 9)}
    for most, shuffled, is_told in ((5, True, True), (5, False, False), (9, True, False)):
        made = converted("verl", **keys, data__val_max_samples=most, data__shuffle=shuffled)
        assert made.tree["validation"]["max_prompts"] == most
        assert (key in made.having("noted")) == is_told
    assert key not in converted("verl", **keys).having("noted")
