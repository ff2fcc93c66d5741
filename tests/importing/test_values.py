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
from tests.importing.test_tables import config_of, converted, words
from trimaran.config import MAX_COUNT, parse_config

ACTOR, OPTIM = "actor_rollout_ref.actor", "actor_rollout_ref.actor.optim"
SHORT = {
    "DAPO": "mt.stage=ray_dapo rl.clip_higher_enable=true rl.clip_ratio_low=0.2 rl.clip_ratio_high=0.28"
    " rl.verifier_function=[acc_for_dapo] rl.overlong_buffer_enable=true rl.rollout_max_tokens=20480"
    " rl.overlong_buffer=4096 rl.filter_groups_enable=true rl.filter_groups_metric=acc_for_dapo"
    " rl.filter_groups_max_batches=-1 rl.filter_groups_train_batch_size=64",
    "EXPERTS": "actor_config.tensor_model_parallel_size=4 actor_config.expert_model_parallel_size=8"
    " rl.actor_resource.num_npus=256 gc.infer_tensor_parallel_size=4",
    "MCORE": "A.actor.strategy=megatron A.actor.megatron.tensor_model_parallel_size=2"
    " A.actor.megatron.expert_model_parallel_size=4 trainer.n_gpus_per_node=32",
    "QUIET": "data.val_files=test.parquet trainer.val_before_train=False",
    "EASYR1_DAPO": "w.reward.reward_function=./examples/reward_function/dapo.py:compute_score"
    " w.reward.reward_function_kwargs.max_response_length=20480"
    " w.reward.reward_function_kwargs.overlong_buffer_length=4096",
    "LORA": "mt.lora_r=64 mt.lora_target_modules=[linear_qkv,linear_fc2]",
}
"""Words for several words."""


def split(table: str) -> list[tuple[str, ...]]:
    """The cells of a table's lines, with `SHORT` put in."""
    lines = [line for line in table.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(cell.strip() for cell in line.split("|")) for line in lines]


def given(text: str) -> dict[str, Any]:
    return words(" ".join(SHORT.get(word, word) for word in text.split()))


SETTINGS = """
# What is minimized.
easyr1 | | algorithm.loss={clip_low:0.2,clip_high:0.3,dual_clip:3.0} trainer.beta2=0.999
easyr1 | | algorithm.kl.place=reward algorithm.kl.estimator=k1
easyr1 | w.actor.loss_type=cispo w.actor.clip_ratio_high=4 | algorithm.loss={type:cispo,clip_high:4.0}
easyr1 | algorithm.use_kl_loss=true algorithm.kl_penalty=low_var_kl | algorithm.kl={place:loss,estimator:k3}
verl | | algorithm.kl.coefficient=0.0 algorithm.aggregation.type=token_mean trainer.beta2=0.999
verl | A.actor.use_kl_loss=True A.actor.kl_loss_type=k3+ | algorithm.kl={coefficient:0.001,estimator:k2}
verl | A.actor.policy_loss.loss_mode=gspo | algorithm={loss:{type:gspo},aggregation:{type:sequence_mean}}
verl | A.actor.loss_agg_mode=seq-mean-token-sum-norm | algorithm.aggregation={type:fixed,tokens:512}
mindspeed-rl | DAPO | algorithm={kl:{coefficient:0.0},loss:{clip_high:0.28},updates_per_batch:2}
mindspeed-rl | DAPO | algorithm.dynamic_sampling={term:acc_for_dapo,max_replaced:1000} run.groups_per_step=64
mindspeed-rl | DAPO | reward.rules.overlong.options={max_tokens:20480,buffer:4096}
mindspeed-rl | DAPO rl.is_multimodal=true | algorithm.dynamic_sampling.term=
# Its GRPO reads clip_ratio alone, and filters nothing (models/loss/grpo_actor_loss_func.py).
mindspeed-rl | DAPO mt.stage=ray_grpo | algorithm={loss:{clip_high:0.2},dynamic_sampling:} run.groups_per_step=32
# verl's threshold is a cap, or two bounds.
verl | algorithm.rollout_correction={rollout_is:token,rollout_is_threshold:3} | algorithm.correction.cap=3.0
verl | algorithm.rollout_correction={rollout_is:token,rollout_is_threshold:0.5_4.0} | algorithm.correction={cap:,token_bounds:[0.5,4.0]}
verl | A.actor.router_replay.mode=R3 A.rollout.enable_rollout_routing_replay=True | trainer.router.replay=true
# The optimizer and the layout.
mindspeed-rl | mt.tensor_model_parallel_size=8 actor_config.tensor_model_parallel_size=2 | trainer.tensor_parallel=2
mindspeed-rl | mt.tensor_model_parallel_size=2 mt.sequence_parallel=true | trainer.sequence_parallel=true
mindspeed-rl | EXPERTS actor_config.moe_tp_extend_ep=true | trainer.expert_parallel=32
mindspeed-rl | EXPERTS | trainer={expert_parallel:8,expert_tensor_parallel:4}
# megatron-core splits experts as the rest, where nothing else is said.
verl | MCORE | trainer={expert_parallel:4,expert_tensor_parallel:2,sequence_parallel:true}
verl | MCORE A.actor.megatron.expert_tensor_parallel_size=1 | trainer.expert_tensor_parallel=1
verl | A.actor.use_dynamic_bsz=True A.actor.ulysses_sequence_parallel_size=4 A.actor.ppo_max_token_len_per_gpu=3000 | trainer={micro_batch_tokens:12000,context_parallel:4}
mindspeed-rl | rl.use_dynamic_bsz=true rl.max_packing_token_size=10240 rl.update_max_packing_token_size=22528 | trainer.micro_batch_tokens=22528
mindspeed-rl | mt.num_layer_list=1,3 mt.pipeline_model_parallel_size=2 | trainer.pipeline_layers=[1,3]
verl | A.actor.megatron.override_transformer_config.recompute_granularity=full | trainer.recompute=true
mindspeed-rl | mt.recompute_granularity=selective | trainer.recompute=selective
mindspeed-rl | LORA | trainer.lora={rank:64,targets:[q_proj,k_proj,v_proj,down_proj]}
# Rewards.
easyr1 | EASYR1_DAPO | reward.rules.dapo.options={max_tokens:20480,buffer:4096}
easyr1 | w.reward.reward_function=null w.reward.compute_score=r1v | reward.rules.r1v.weight=1.0
verl | reward_model.reward_kwargs={max_resp_len:400,overlong_buffer_cfg:{enable:True,len:100}} | reward.rules.overlong.options={buffer:100,max_tokens:400}
# Validation.
verl | QUIET trainer.test_freq=-1 | data.validation=
verl | QUIET trainer.test_freq=5 | validation={every:5,before_train:false,max_prompts:1000000}
verl | QUIET trainer.val_only=True | validation.only=true
verl | A.rollout.val_kwargs={do_sample:True,n:8,temperature:0.6,top_p:0.95} | validation={final_samples:8,temperature:0.6,top_p:0.95}
easyr1 | w.rollout.val_override_config.n=2 | validation.samples=2
verl | trainer.log_val_generations=5 trainer.logger=[console,wandb] | validation.logged=5 metrics.sinks=[wandb]
verl | data.apply_chat_template_kwargs.enable_thinking=False | data.chat_template_kwargs.enable_thinking=false
"""


@pytest.mark.parametrize(("name", "theirs", "ours"), split(SETTINGS))
def test_a_value_keeps_its_meaning(name: str, theirs: str, ours: str) -> None:
    tree = json.loads(config_of(name, **given(theirs)).model_dump_json())
    wanted = words(ours)
    assert wanted == {
        key: reduce(lambda branch, part: branch[part], key.split("."), tree) for key in wanted
    }


REFUSED = """
verl | algorithm.adv_estimator=gae | critic
mindspeed-rl | mt.stage=dpo | no pairs
verl | A.rollout.top_p=0.9 | give 1
verl | reward_model.enable=True | docs/reward-plugins.md
verl | trainer.v1.trainer_mode=separate_async | run.max_lag
verl | A.actor.use_kl_loss=True algorithm.use_kl_in_reward=True | one place
verl | A.actor.use_kl_loss=maybe | 'maybe' is neither on (true, yes, on, 1)
verl | A.actor.router_replay.mode=R3 | enable_rollout_routing_replay=True
verl | A.actor.grad_clip=much | is no value
verl | A.actor.megatron.override_mcore_model_config.num_layers=2 | config.json
verl | A.actor.megatron.override_transformer_config.moe_router_topk=2 | what is computed
verl | A.ref.model.path=other | set trainer.load
verl | A.rollout.agent.default_agent_loop=tool_agent | multi_turn.tool_config_path
verl | A.rollout.multi_turn.interaction_config_path=a.yaml | docs/agents.md
verl | A.model.lora_rank=8 A.model.target_modules=qproj | adapters go to
verl | A.model.exclude_modules=lm_head | leave it out
verl | data.train_max_samples=100 | --limit 100
verl | reward_model.reward_manager=mine | a reward is a function here
verl | reward_model.reward_kwargs.overlong_buffer_cfg.enable=True | overlong_buffer_cfg.len=N
verl | algorithm.rollout_correction={rollout_is:sequence,rollout_is_threshold:0.5_4.0} | a token's weight
verl | trainer.total_training_steps=null data.gen_batch_size=512 algorithm.filter_groups.enable=True | give trainer.total_training_steps=N
verl | algorithm.kl_ctrl.type=adaptive | algorithm.kl.adaptive
easyr1 | data.train_files=hiyouga/geometry3k@train | trimaran data prepare
easyr1 | data.format_prompt=./examples/format_prompt/math.jinja | template
easyr1 | trainer.max_steps=null w.actor.optim.lr_warmup_ratio=0.1 | give trainer.max_steps=N
mindspeed-rl | mt.data_path=./dataset/data | prefix
mindspeed-rl | rl.verifier_function=[acurracy] | verifiers are
mindspeed-rl | actor_config.load=./ckpt actor_config.finetune=false | finetune=true
mindspeed-rl | DAPO rl.filter_groups_train_batch_size=48 | give a rl_config.mini_batch_size that divides 48
mindspeed-rl | mt.split=[90,5,5] | --hold-out N
"""


@pytest.mark.parametrize(("name", "theirs", "text"), split(REFUSED))
def test_what_would_change_the_training_is_refused_with_what_to_do(
    name: str, theirs: str, text: str
) -> None:
    assert text in " ".join(converted(name, **given(theirs)).having("refused").values())


NOTED = """
verl | A.actor.fsdp_config.model_dtype=bf16 | adamw_bf16 keeps weights
verl | A.rollout.max_model_len=1000 | together
verl | A.actor.optim.lr_warmup_steps=3 | one step ahead
easyr1 | w.actor.optim.lr_warmup_ratio=0.3 | one step ahead
easyr1 | w.actor.optim.lr_scheduler_type=cosine | one step ahead
verl | A.actor.policy_loss.loss_mode=gspo A.actor.use_kl_loss=True | the KL term and the entropy keep
verl | data.image_key=images | ~data.image_key
easyr1 | w.actor.optim.strategy=adamw_bf16 | 0.99 is taken
easyr1 | w.actor.loss_type=gspo_token | clip_ratio_dual
easyr1 | data.filter_overlong_prompts=false | cut on the right
easyr1 | w.actor.loss_avg_mode=seq | micro-batch
mindspeed-rl | | micro-batches' means
mindspeed-rl | rl.clip_higher_enable=true | clip_higher_enable is of ray_dapo
mindspeed-rl | actor_config.noop_layers=[0,11] | trainer.pipeline_layers
"""


@pytest.mark.parametrize(("name", "theirs", "text"), split(NOTED))
def test_what_trains_a_little_differently_is_noted(name: str, theirs: str, text: str) -> None:
    assert text in " ".join(converted(name, **given(theirs)).having("noted").values())


def test_what_their_examples_say_of_the_same_goes_through() -> None:
    verl = words(
        "A.actor.optim.override_optimizer_config.optimizer_cpu_offload=True A.actor.megatron.dtype=bfloat16"
        " A.actor.fsdp_config={dtype:bfloat16,model_dtype:fp32,forward_prefetch:False}"
        " A.rollout.response_length=512 A.rollout.max_model_len=1024 reward_model.reward_manager=dapo"
        " A.model.exclude_modules=.*visual.*"
    )
    assert verl.keys() <= converted("verl", **verl).having("ignored").keys()


def test_the_name_that_goes_before_another_one_counts() -> None:
    """Of the same key: null is no value, and the other one is listed as ignored."""
    key, newer = "custom_reward_function.path", "reward.custom_reward_function.path"
    for older, counts, other in (("a.py", "a.py", newer), (None, "b.py", key)):
        made = converted("verl", **{key: older, newer: "b.py"})
        function = made.tree["reward"]["rules"]["compute_score"]["function"]
        assert function.endswith(f"/{counts}:compute_score")
        assert "goes before it" in made.having("ignored")[other]


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
    keys = words(
        "data.rollout_batch_size=256 w.actor.global_batch_size=64 trainer.max_steps=null"
        " trainer.total_episodes=15 w.actor.optim.lr_warmup_ratio=0.1"
    )
    rows = write_rows(tmp_path / "geo3k.jsonl", 2100)
    config = config_of("easyr1", **keys, **{"data.train_files": rows})
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
    keys = words("data.train_files=away.parquet trainer.max_steps=null trainer.total_epochs=4")
    made = converted("easyr1", **keys)
    assert "the run counts them" in made.having("noted")["trainer.total_epochs"]
    assert (made.tree["run"]["epochs"], made.tree["run"].get("steps")) == (4, None)
    assert made.tree["validation"]["every"] == MAX_COUNT, "at the end alone, wherever that is"


def test_verls_loader_says_how_many_prompts_a_step_has(tmp_path: Path) -> None:
    keys = words(
        "data.train_batch_size=4 data.gen_batch_size=8 A.actor.ppo_mini_batch_size=4"
        " trainer.total_training_steps=null trainer.total_epochs=1 custom_reward_function.path=r.py"
    )
    keys["data.train_files"] = write_rows(tmp_path / "train.jsonl", 24)
    for filters, prompts in ((False, 8), (True, 4)):
        run = converted("verl", **keys, **{"algorithm.filter_groups.enable": filters}).tree["run"]
        assert (run["groups_per_step"], run["steps"]) == (prompts, 3)


def test_verls_reward_follows_from_the_rows_source(tmp_path: Path) -> None:
    key = "reward.custom_reward_function.path"

    def made(name: str, **columns: Any) -> Any:
        rows = write_rows(tmp_path / name, 2, **columns)
        return converted("verl", **{"data.train_files": rows})

    one = made("a.parquet", data_source="hiyouga/geometry3k").tree
    assert list(one["reward"]["rules"]) == ["geo3k"]
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
    keys = words("custom_reward_function={path:rewards/mine.py,name:score,reward_kwargs:{scale:2}}")
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
    card = tmp_path / "train.card.json"
    rows = write_rows(tmp_path / "train.jsonl")
    keys = {"data.train_files": rows, "data.system_prompt": "Think."}
    for after, fate in ((" Think first.", "noted"), ("", "mapped")):
        template = {"before": "", "after": after, "system": None}
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
