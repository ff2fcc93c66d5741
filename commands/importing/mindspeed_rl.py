"""MindSpeed-RL's keys, and those that MindSpeed-MM's guides add. Their meaning and defaults:
mindspeed_rl/config_cls of Ascend/MindSpeed-RL, April 2026, and its configs/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from commands.importing.conversion import System
from commands.importing.rows import (
    Convert,
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
)
from commands.importing.shared import (
    HERE,
    IN_TRAINER,
    LENGTHS,
    MEMORY,
    NO_CRITIC,
    NO_KL,
    ONCE,
    PADDING,
    TURNS,
    WHOLE,
    Shape,
    data_file,
    kept,
    kl_in,
    limit_images,
    longest_sequence,
    lora,
    model_folder,
    real,
    run_name,
    updates_of,
    whole,
)
from commands.importing.stages import (
    INTERLEAVED,
    ONE_STAGE,
    count_layers,
    listed,
    numbers,
    without,
)
from trimaran.choices import SINKS

MEGATRON_TRAINING, ACTOR = "megatron_training", "actor_config"
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
STAGES = ("ray_grpo", "ray_dapo")
SCHEDULES = ("constant", "linear", "cosine")
MOVES = (
    "there the rate moves after each update, begins with that of step 0, and with epochs above 1 moves so many"
    " times as fast; here it moves once a step"
)
MEANS = (
    "there an update's loss is the mean of its micro-batches' means; here all of its tokens, or completions, count"
    " alike"
)
SUFFIXES = (".parquet", ".jsonl")
AS_IN_FOLDER = "the model is what the config.json of its folder says"
TOWER = {
    "vision_encoder": ("*visual.patch_embed.*", "*visual.blocks.*"),
    "vision_projector": ("*visual.merger.*",),
}
"""Parts of a vision tower -> our names of their parameters."""


def _both(*rows: Row) -> Iterator[Row]:
    """A key of `megatron_training` that `actor_config` may have as well, and then goes before."""
    for row in rows:
        yield replace(row, convert=_unless_actors(row))
        yield replace(
            row,
            key=f"{ACTOR}.{_name(row)}",
            default=None,
            becomes="",
            text=f"goes before `{row.key}`",
            convert=_if_given(row),
        )


def _name(row: Row) -> str:
    return row.key.partition(".")[2]


def _unless_actors(row: Row) -> Convert:
    def convert(value: Any, theirs: Theirs) -> Outcome:
        if theirs[f"{ACTOR}.{_name(row)}"] is not None:
            return Outcome("ignored", f"{ACTOR}.{_name(row)} goes before it")
        return row.convert(value, theirs)

    return convert


def _if_given(row: Row) -> Convert:
    def convert(value: Any, theirs: Theirs) -> Outcome:
        return Outcome("ignored", "not set") if value is None else row.convert(value, theirs)

    return convert


def _shared(theirs: Theirs, name: str) -> Any:
    """As `_both` reads it."""
    value = theirs[f"{ACTOR}.{name}"]
    return theirs[f"{MEGATRON_TRAINING}.{name}"] if value is None else value


def _shared_is_on(theirs: Theirs, name: str) -> bool:
    key = f"{ACTOR}.{name}"
    return theirs.is_on(f"{MEGATRON_TRAINING}.{name}" if theirs[key] is None else key)


def _stage(value: Any, theirs: Theirs) -> Outcome:
    if value in STAGES:
        return Outcome("mapped")
    return Outcome("refused", "ray_grpo and ray_dapo are here; no critic (ray_ppo), no pairs (dpo)")


def _data(value: Any, theirs: Theirs) -> Outcome:
    if value is None or Path(str(value)).suffix not in SUFFIXES:
        return Outcome(
            "refused",
            "theirs is the prefix of a Megatron data set: prepare the file that its `input` names with"
            " `trimaran data prepare` (`trimaran import mindspeed-rl` prints the words for its file of"
            f" configs/datasets), and give {MEGATRON_TRAINING}.data_path=FILE.parquet",
        )
    return data_file("data.train", f"{MEGATRON_TRAINING}.data_path")(value, theirs)


def _is_dapo(theirs: Theirs) -> bool:
    return _shared(theirs, "stage") == "ray_dapo"


def _trained(theirs: Theirs) -> Any:
    """Prompts that a step trains on: with filtering fewer than global_batch_size, which it draws."""
    if _is_dapo(theirs) and theirs.is_on(f"{RL}.filter_groups_enable"):
        return theirs[f"{RL}.filter_groups_train_batch_size"]
    return _shared(theirs, "global_batch_size")


def _groups(value: Any, theirs: Theirs) -> Outcome:
    if value is None:
        return Outcome("refused", f"give {MEGATRON_TRAINING}.global_batch_size=N")
    return Outcome("mapped", "", {"run.groups_per_step": int(_trained(theirs))})


def _steps(value: Any, theirs: Theirs) -> Outcome:
    if value is None:
        return Outcome("refused", f"a run counts steps: give {MEGATRON_TRAINING}.train_iters=N")
    return Outcome("mapped", "", {"run.steps": int(value)})


def _updates(value: Any, theirs: Theirs) -> Outcome:
    batch = _trained(theirs)
    return updates_of(int(batch or 0), int(value), f"{RL}.mini_batch_size")


def _micro_batch(value: Any, theirs: Theirs) -> Outcome:
    if theirs.is_on(f"{RL}.use_dynamic_bsz"):
        tokens = (
            theirs[f"{RL}.update_max_packing_token_size"] or theirs[f"{RL}.max_packing_token_size"]
        )
        return Outcome("mapped", "", {"trainer.micro_batch_tokens": int(tokens)})
    if value is None:
        return Outcome("refused", f"give {ACTOR}.micro_batch_size=N")
    longest = int(theirs[f"{RL}.max_prompt_length"]) + int(theirs[f"{SAMPLING}.max_tokens"])
    return Outcome("mapped", "", {"trainer.micro_batch_tokens": int(value) * longest})


def _kl(value: Any, theirs: Theirs) -> Outcome:
    if _is_dapo(theirs):
        return NO_KL
    adaptive = None
    if theirs[f"{RL}.kl_ctrl_type"] == "adaptive":
        target, horizon = theirs[f"{RL}.kl_target"], theirs[f"{RL}.kl_horizon"]
        adaptive = {"target": float(target), "horizon": int(horizon)}
    return kl_in("loss", value, theirs[f"{RL}.kl_penalty"], adaptive)


def _loss(value: Any, theirs: Theirs) -> Outcome:
    low = high = float(value)
    has_two = theirs.is_on(f"{RL}.clip_higher_enable")
    if has_two and _is_dapo(theirs):
        low, high = (float(theirs[f"{RL}.clip_ratio_{end}"]) for end in ("low", "high"))
    settings = {"algorithm.loss": {"type": "ppo_clip", "clip_low": low, "clip_high": high}}
    if has_two and not _is_dapo(theirs):
        text = (
            "clip_higher_enable has an effect with ray_dapo alone there: clip_ratio is both bounds"
        )
        return Outcome("noted", text, settings)
    return Outcome("mapped", "", settings)


def _aggregation(value: Any, theirs: Theirs) -> Outcome:
    is_by_token = is_on(value) or not _is_dapo(theirs)
    ours = "token_mean" if is_by_token else "sequence_mean"
    return Outcome("noted", MEANS, {"algorithm.aggregation": ours})


def _images(value: Any, theirs: Theirs) -> Outcome:
    """Column and bounds are no keys of theirs, but stand in their program (mindspeed_rl/datasets)."""
    if not is_on(value):
        return Outcome("ignored", "rows have no images")
    pixels = {"data.min_pixels": 512 * 512, "data.max_pixels": 2048 * 2048}
    return Outcome("mapped", "", {"data.image_key": "images", **pixels})


def _reward(value: Any, theirs: Theirs) -> Outcome:
    if theirs.is_on(f"{RL}.is_multimodal"):
        text = "with is_multimodal their program takes 0.9 x right + 0.1 x format instead, the rule geo3k"
        return Outcome("noted", text, {"reward.rules": {"geo3k": 1.0}})
    names, weights = list(value), list(theirs[f"{RL}.verifier_weight"])
    if unknown := [name for name in names if name not in VERIFIERS]:
        return Outcome(
            "refused", f"verifiers are {', '.join(VERIFIERS)} (given: {', '.join(unknown)})"
        )
    if len(names) != len(weights):
        return Outcome(
            "refused", f"{len(names)} verifiers have {len(weights)} weights; give one each"
        )
    rules: dict[str, Any] = dict(zip(names, map(float, weights), strict=True))
    if theirs.is_on(f"{RL}.overlong_buffer_enable"):
        most, buffer = int(theirs[f"{RL}.rollout_max_tokens"]), int(theirs[f"{RL}.overlong_buffer"])
        rules["overlong"] = {
            "weight": float(theirs[f"{RL}.overlong_buffer_penalty_factor"]),
            "options": {"max_tokens": most, "buffer": buffer},
        }
    return Outcome("mapped", "", {"reward.rules": rules})


def _filtering(value: Any, theirs: Theirs) -> Outcome:
    if not is_on(value):
        return Outcome("ignored", "every group trains")
    if not _is_dapo(theirs):
        text = "every group trains, as there: groups are filtered with ray_dapo alone"
        return Outcome("noted", text)
    batches = int(theirs[f"{RL}.filter_groups_max_batches"])
    drawn, trained = int(_shared(theirs, "global_batch_size") or 0), int(_trained(theirs))
    most = 1000.0 if batches < 0 else min(1000.0, max(1.0, batches * drawn / trained - 1))
    sampling: dict[str, Any] = {"max_replaced": most}
    metric, is_verifier = (
        theirs[f"{RL}.filter_groups_metric"],
        not theirs.is_on(f"{RL}.is_multimodal"),
    )
    if is_verifier and metric in theirs[f"{RL}.verifier_function"]:
        sampling["term"] = metric
    text = (
        "groups in which the metric is equal are replaced one by one; run.groups_per_step is"
        " filter_groups_train_batch_size, and global_batch_size says how many may be replaced"
    )
    return Outcome("noted", text, {"algorithm.dynamic_sampling": sampling})


def _layout(value: Any, theirs: Theirs) -> Outcome:
    if value is None:
        return Outcome("refused", f"give {RL}.actor_resource.num_npus=N")

    def size(name: str) -> int:
        return int(_shared(theirs, name) or 1)

    tensor, expert = size("tensor_model_parallel_size"), size("expert_model_parallel_size")
    # With moe_tp_extend_ep the tensor-parallel ranks take whole experts too; without it they split each.
    extends = _shared_is_on(theirs, "moe_tp_extend_ep")
    slices = tensor if expert > 1 and not extends else 1
    if expert > 1 and extends:
        expert *= tensor
    shape = Shape(
        devices=int(value),
        rollout_tensor=int(theirs[f"{GENERATE}.infer_tensor_parallel_size"]),
        tensor=tensor,
        pipeline=size("pipeline_model_parallel_size"),
        context=size("context_parallel_size"),
        expert=expert,
        expert_tensor=slices,
    )
    split = shape.split(theirs.in_turns)
    settings: dict[str, Any] = {
        **split.settings(),
        "trainer.tensor_parallel": tensor,
        "trainer.pipeline_parallel": shape.pipeline,
        "trainer.context_parallel": shape.context,
        "trainer.expert_parallel": expert,
    }
    if slices > 1:
        settings["trainer.expert_tensor_parallel"] = slices
    if tensor > 1 and _shared_is_on(theirs, "sequence_parallel"):
        settings["trainer.sequence_parallel"] = True
    if split.data * shape.context > 1 and _shared_is_on(theirs, "use_distributed_optimizer"):
        settings["trainer.distributed_optimizer"] = True
    return Outcome("noted", split.text(), settings)


def _load(value: Any, theirs: Theirs) -> Outcome:
    if value is None or _shared_is_on(theirs, "finetune"):
        return Outcome(
            "ignored", "weights are read from model.path as they are: nothing is converted"
        )
    return Outcome(
        "refused",
        "with finetune: false a run of theirs goes on, and their checkpoints are not read: convert one to"
        " a Hugging Face folder, give it as tokenizer_name_or_path, and set finetune=true. A run of ours goes on by `trimaran"
        " train --resume RUN`",
    )


def _freeze(value: Any, theirs: Theirs) -> Outcome:
    """MindSpeed-MM's description of a model says which parts of a vision tower stay as they are."""
    if not theirs.is_on(f"{RL}.is_multimodal"):
        return Outcome("ignored", AS_IN_FOLDER)
    path = Path(str(value)).expanduser()
    if value is None or not path.is_file():
        text = (
            f"{value or 'the description of the model'} is not here: vision_encoder and vision_projector are frozen, as"
            " in the published ones; leave trainer.freeze out of the run, where they are to train"
        )
        return Outcome("noted", text, {"trainer.freeze": ["*visual.*"]})
    described = json.loads(path.read_text(encoding="utf-8"))
    frozen = [name for name in TOWER if _is_frozen(described, name)]
    if not frozen:
        return Outcome("ignored", "the vision tower trains")
    patterns = ["*visual.*"] if len(frozen) == len(TOWER) else list(TOWER[frozen[0]])
    return Outcome("mapped", "", {"trainer.freeze": patterns})


def _is_frozen(described: Any, name: str) -> bool:
    found = described
    for section in ("image_encoder", name, "freeze"):
        found = cast(dict[str, Any], found).get(section) if isinstance(found, dict) else None
    return is_on(found, f"image_encoder.{name}.freeze")


def _reference(value: Any, theirs: Theirs) -> Outcome:
    """Their checkpoints are not read, but two of them are not one model."""
    first = _shared(theirs, "load")
    if value is None or first in (None, value):
        return Outcome("ignored", "the reference is always model.path, also after a resume")
    text = (
        f"there a run begins with {first} and the reference is {value}: here both are model.path. To begin with"
        " other weights set trainer.load in the run, to a checkpoint of them (`trimaran convert MODEL"
        " CHECKPOINT` makes one)"
    )
    return Outcome("noted", text)


def _split(value: Any, theirs: Theirs) -> Outcome:
    """The shares of rows for training, validation and tests."""
    shares = [float(word) for word in str(value or "").strip("[]").split(",") if word.strip()]
    if not any(shares[1:]):
        return Outcome("ignored", "data.validation is a file of its own")
    return Outcome(
        "refused",
        "all rows of data.train train here: give 100,0,0, and keep rows back with `trimaran data prepare"
        " --hold-out N`",
    )


def _partial(value: Any, theirs: Theirs) -> Outcome:
    if value is None or int(value) == 1:
        return Outcome("ignored", "an answer is made with one version of the weights")
    text = (
        "there an answer may be made over so many steps; here in one, but with run.max_lag above 0, which says"
        " how many steps old the weights of a token may be"
    )
    return Outcome("noted", text)


def _checkpoints(value: Any, theirs: Theirs) -> Outcome:
    """All of them, as there."""
    number = kept(None, _shared(theirs, "train_iters"), _shared(theirs, "save_interval"))
    if value is None:
        return number
    place = str(Path(str(value)).expanduser().absolute())
    return Outcome("mapped", "", {"run.checkpoints": place, **number.settings})


def _warmup(value: Any, theirs: Theirs) -> Outcome:
    steps = int(float(value or 0) * int(_shared(theirs, "train_iters") or 0))
    settings = {"trainer.warmup_steps": steps}
    return Outcome("noted", MOVES, settings) if steps else Outcome("mapped", "", settings)


def _schedule(value: Any, theirs: Theirs) -> Outcome:
    if value not in SCHEDULES:
        return Outcome("refused", f"give {', '.join(SCHEDULES)}")
    settings = {"trainer.schedule": value}
    return Outcome(
        "mapped" if value == "constant" else "noted", "" if value == "constant" else MOVES, settings
    )


def _recompute(value: Any, theirs: Theirs) -> Outcome:
    if value is None:
        return Outcome("ignored", "nothing is computed again")
    if value == "selective":
        return Outcome("mapped", "", {"trainer.recompute": value})
    layers = _shared(theirs, "recompute_num_layers")
    text = f"every layer, not {layers} of each stage" if layers else "every layer"
    return Outcome("noted", text, {"trainer.recompute": True})


def _lora(value: Any, theirs: Theirs) -> Outcome:
    if not value:
        return Outcome("ignored", "no adapters")
    return lora(_shared(theirs, "lora_r"), _shared(theirs, "lora_alpha"), value)


def _context(value: Any, theirs: Theirs) -> Outcome:
    if int(_shared(theirs, "context_parallel_size") or 1) == 1 or value == "ulysses_cp_algo":
        return Outcome("ignored", "ranks share the heads, as with ulysses_cp_algo")
    text = "ranks share the heads here, as with ulysses_cp_algo: their number must divide the heads"
    return Outcome("noted", text)


def _layers(value: Any, theirs: Theirs) -> Outcome:
    if value is None:
        return Outcome("ignored", "not set")
    return ONE_STAGE if _stages(theirs) == 1 else listed(numbers(value))


def _noops(value: Any, theirs: Theirs) -> Outcome:
    if value is None:
        return Outcome("ignored", "not set")
    if _shared(theirs, "num_layers_per_virtual_pipeline_stage") is not None:
        return INTERLEAVED
    layers = count_layers(_shared(theirs, "tokenizer_name_or_path"))
    return without(numbers(value), _stages(theirs), layers)


def _stages(theirs: Theirs) -> int:
    return int(_shared(theirs, "pipeline_model_parallel_size") or 1)


def _virtual(value: Any, theirs: Theirs) -> Outcome:
    if value is None:
        return Outcome("ignored", "not set")
    text = f"give trainer.virtual_stages: layers of a stage / {value}"
    return Outcome("noted", text)


def _sinks(value: Any, theirs: Theirs) -> Outcome:
    """As there wandb goes before TensorBoard, which is always written here."""
    named = [name for name in ("wandb", "swanlab") if theirs.is_on(f"{RL}.use_{name}")]
    if not is_on(value):
        return Outcome("ignored", "off")
    known = [name for name in named if name in SINKS.names()]
    if known != named:
        text = "swanlab: not written here, unless an installed package adds that sink"
        return Outcome("noted", text, {"metrics.sinks": known} if known else {})
    return Outcome("mapped", "", {"metrics.sinks": named})


FUSED = "how layers are computed follows from the model's config.json and the device"
ONE_SIZE = "passes for log-probabilities have micro-batches of the same size"
GROUPS = "groups travel one by one, as soon as they are whole"

ROWS: tuple[Row, ...] = (
    own(
        "model",
        "trainer.freeze",
        None,
        "with is_multimodal MindSpeed-MM's description of the model: `freeze` of its vision_encoder and"
        " vision_projector counts, and where the file is not here both are frozen, as in the published ones. The"
        " rest is what the config.json of the model's folder says",
        _freeze,
    ),
    ignored("model.*", AS_IN_FOLDER),
    *_both(
        own(
            "megatron_training.stage",
            "",
            "ray_grpo",
            "ray_grpo and ray_dapo; ray_ppo and dpo are refused",
            _stage,
        ),
        own(
            "megatron_training.tokenizer_name_or_path",
            "model.path",
            None,
            "the folder in Hugging Face's form, with its weights",
            model_folder,
        ),
        own(
            "megatron_training.data_path",
            "data.train",
            None,
            "a file with rows; the prefix of a Megatron"
            " data set is refused: `trimaran data prepare` makes a file of what its `input` names",
            _data,
        ),
        own(
            "megatron_training.global_batch_size",
            "run.groups_per_step",
            None,
            "prompts of a step; each is answered n_samples_per_prompt times. With ray_dapo and"
            " filter_groups_enable filter_groups_train_batch_size",
            _groups,
        ),
        own("megatron_training.train_iters", "run.steps", None, "has to be given", _steps),
        same("megatron_training.save_interval", "run.checkpoint_every", None, to=whole),
        same("megatron_training.seed", "run.seed", 1234, to=whole),
        same("megatron_training.npu_deterministic", "run.deterministic", None, to=is_on),
        same(
            "megatron_training.use_deter_comp",
            "run.deterministic",
            None,
            "MindSpeed-MM's name",
            is_on,
        ),
        own(
            "megatron_training.no_shuffle",
            "data.shuffle",
            False,
            "its opposite",
            lambda value, theirs: Outcome("mapped", "", {"data.shuffle": not is_on(value)}),
        ),
        own(
            "megatron_training.micro_batch_size",
            "trainer.micro_batch_tokens",
            None,
            "sequences x"
            " (max_prompt_length + max_tokens), a bound that holds at least as many; with use_dynamic_bsz"
            " update_max_packing_token_size",
            _micro_batch,
        ),
        part(
            "megatron_training.tensor_model_parallel_size",
            f"{RL}.actor_resource.num_npus",
            1,
            "trainer.tensor_parallel",
        ),
        part(
            "megatron_training.pipeline_model_parallel_size",
            f"{RL}.actor_resource.num_npus",
            1,
            "trainer.pipeline_parallel",
        ),
        part(
            "megatron_training.context_parallel_size",
            f"{RL}.actor_resource.num_npus",
            1,
            "trainer.context_parallel",
        ),
        part(
            "megatron_training.expert_model_parallel_size",
            f"{RL}.actor_resource.num_npus",
            1,
            "trainer.expert_parallel",
        ),
        part(
            "megatron_training.moe_tp_extend_ep",
            f"{RL}.actor_resource.num_npus",
            False,
            "trainer.expert_parallel is x tensor_model_parallel_size then; without it each expert is split by"
            " trainer.expert_tensor_parallel",
        ),
        part(
            "megatron_training.sequence_parallel",
            f"{RL}.actor_resource.num_npus",
            False,
            "trainer.sequence_parallel, where tensor_parallel is above 1",
        ),
        part(
            "megatron_training.use_distributed_optimizer",
            f"{RL}.actor_resource.num_npus",
            False,
            "trainer.distributed_optimizer, where ranks share parameters",
        ),
        own(
            "megatron_training.context_parallel_algo",
            "",
            "ulysses_cp_algo",
            "ulysses_cp_algo is what is here",
            _context,
        ),
        own(
            "megatron_training.num_layers_per_virtual_pipeline_stage",
            "trainer.virtual_stages",
            None,
            "layers of a stage / this; to be given",
            _virtual,
        ),
        own(
            "megatron_training.num_layer_list",
            "trainer.pipeline_layers",
            None,
            "layers of each stage",
            _layers,
        ),
        own(
            "megatron_training.noop_layers",
            "trainer.pipeline_layers",
            None,
            "layers that do nothing are left out, and their stages have fewer",
            _noops,
        ),
        own(
            "megatron_training.recompute_granularity",
            "trainer.recompute",
            None,
            "full: true, for every layer; selective: the same, of the attention alone",
            _recompute,
        ),
        part("megatron_training.recompute_num_layers", "megatron_training.recompute_granularity"),
        ignored("megatron_training.recompute_method", "every layer is computed again, or none"),
        ignored(
            "megatron_training.recompute_activation_function",
            "trainer.recompute is of whole layers",
        ),
        switch("megatron_training.swap_optimizer", False, "trainer.offload", ["optimizer"], ""),
        ignored("megatron_training.swap_attention", "trainer.recompute saves that memory"),
        ignored(
            "megatron_training.reuse_fp32_param",
            "trainer.optimizer: adamw_bf16 has no fp32 weights",
        ),
        same("megatron_training.lr", "trainer.learning_rate", 1e-6, to=real),
        own(
            "megatron_training.lr_decay_style",
            "trainer.schedule",
            "linear",
            f"{', '.join(SCHEDULES)}; one that falls is noted: {MOVES}. Another one is refused",
            _schedule,
        ),
        same("megatron_training.min_lr", "trainer.min_learning_rate", 0.0, to=real),
        own(
            "megatron_training.lr_warmup_fraction",
            "trainer.warmup_steps",
            None,
            "x train_iters",
            _warmup,
        ),
        same("megatron_training.weight_decay", "trainer.weight_decay", 0.01, to=real),
        same("megatron_training.clip_grad", "trainer.clip_grad", 1.0, to=real),
        same("megatron_training.adam_beta1", "trainer.beta1", 0.9, to=real),
        same("megatron_training.adam_beta2", "trainer.beta2", 0.999, to=real),
        same("megatron_training.adam_eps", "trainer.epsilon", None, to=real),
        ignored("megatron_training.initial_loss_scale", "bfloat16 needs none"),
        own(
            "megatron_training.load",
            "",
            None,
            "ignored with finetune: true, as weights are read from model.path; else refused",
            _load,
        ),
        part("megatron_training.finetune", "megatron_training.load", False),
        own("megatron_training.save", "run.checkpoints", None, "all are kept", _checkpoints),
        ignored(
            "megatron_training.no_load_optim",
            "a new run has a new optimizer; `trimaran train --resume` goes on with the old one",
        ),
        ignored("megatron_training.no_load_rng", "draws follow from run.seed and the step"),
        ignored("megatron_training.no_save_optim", "a checkpoint holds all that a resume needs"),
        ignored("megatron_training.no_save_rng", "draws follow from run.seed and the step"),
        ignored(
            "megatron_training.load_checkpoint_loosely", "a checkpoint is read whole or not at all"
        ),
        ignored(
            "megatron_training.enable_high_availability",
            "docs/operations.md has what survives what",
        ),
        own(
            "megatron_training.lora_target_modules",
            "trainer.lora",
            None,
            "linear_qkv, linear_proj, linear_fc1, linear_fc2, with lora_r and lora_alpha",
            _lora,
        ),
        part("megatron_training.lora_r", "megatron_training.lora_target_modules", 8),
        part("megatron_training.lora_alpha", "megatron_training.lora_target_modules", 16),
        ignored("megatron_training.lora_fusion", FUSED),
        ignored(
            "megatron_training.lora_ckpt_filter", "a checkpoint with adapters holds these alone"
        ),
        only("megatron_training.bf16", True, (True,), "model.dtype: bfloat16", "give true"),
        same(
            "megatron_training.moe_aux_loss_coeff", "trainer.router.load_balancing", None, to=real
        ),
        same("megatron_training.moe_z_loss_coeff", "trainer.router.z_loss", None, to=real),
        ignored("megatron_training.model", AS_IN_FOLDER),
        ignored("megatron_training.seq_length", f"{RL}.max_prompt_length bounds prompts"),
        ignored(
            "megatron_training.dataset_additional_keys",
            "the file has the answer, and what `trimaran data prepare --keep` names",
        ),
        ignored(
            "megatron_training.full_shuffle_instruction_dataset",
            "data.shuffle is of the whole file",
        ),
        own(
            "megatron_training.split",
            "",
            None,
            "100,0,0: data.validation is a file of its own. Other shares are refused",
            _split,
        ),
        ignored(
            "megatron_training.no_shared_storage",
            "run.checkpoints says where; the launcher's hosts need no common disk without it",
        ),
        ignored("megatron_training.distributed_backend", "the device says it", "nccl"),
        ignored("megatron_training.tokenizer_type", "the tokenizer is that of the model's folder"),
        ignored(
            "megatron_training.tokenizer_not_use_fast",
            "the tokenizer is that of the model's folder",
        ),
        ignored("megatron_training.variable_seq_lengths", PADDING),
        ignored("megatron_training.no_pad_to_seq_lengths", PADDING),
        ignored("megatron_training.reset_attention_mask", PADDING),
        ignored("megatron_training.attention_mask_type", "causal"),
        only(
            "megatron_training.attention_dropout",
            0.0,
            (0, 0.0),
            "none",
            "there is no dropout; give 0",
        ),
        only(
            "megatron_training.hidden_dropout", 0.0, (0, 0.0), "none", "there is no dropout; give 0"
        ),
        ignored("megatron_training.overlap_grad_reduce", FUSED),
        ignored("megatron_training.overlap_param_gather", FUSED),
        ignored("megatron_training.moe_alltoall_overlap_comm", FUSED),
        ignored("megatron_training.moe_grouped_gemm", FUSED),
        ignored("megatron_training.moe_permutation_async_comm", FUSED),
        ignored("megatron_training.dpo_loss_type", "of dpo alone"),
    ),
    *_both(
        *each(
            "megatron_training",
            "attention_softmax_in_fp32 gemm_gradient_accumulation_fusion init_method_std"
            " no_gradient_accumulation_fusion no_masked_softmax_fusion num_layers shape_order use_flash_attn"
            " use_fused_rmsnorm use_fused_rotary_pos_emb use_fused_swiglu use_mcore_models"
            " use_rotary_position_embeddings norm_epsilon normalization position_embedding_type qk_layernorm swiglu"
            " log_interval eval_interval eval_iters",
            FUSED,
        ),
    ),
    ignored(f"{ACTOR}.num_workers", "the file is read once"),
    # rl_config.
    own(
        f"{RL}.actor_resource.num_npus",
        "trainer.data_parallel, rollout.replicas",
        None,
        "devices, which train and generate in turns there; here half of them trains and half"
        " generates, or with `run.pools=colocated` behind the file all do both in turns",
        _layout,
    ),
    ignored(f"{RL}.actor_resource.*", "devices are told apart by their kind"),
    ignored(f"{RL}.reference_resource.*", "the reference is on the trainer's devices"),
    refused(
        f"{RL}.reward_resource.*",
        "there is no reward model here: serve one over HTTP (docs/reward-plugins.md), name it in reward.rules of"
        " the run, and leave this out",
    ),
    ignored(f"{RL}.critic_resource.*", NO_CRITIC),
    ignored(f"{RL}.vit_resource.*", IN_TRAINER),
    same(f"{RL}.max_prompt_length", "rollout.max_prompt_tokens", 512, to=whole),
    same(f"{RL}.n_samples_per_prompt", "rollout.group_size", 1, to=whole),
    own(
        f"{RL}.mini_batch_size",
        "algorithm.updates_per_batch",
        1,
        "global_batch_size / this: both count prompts; their program multiplies by n_samples_per_prompt",
        _updates,
    ),
    same(f"{RL}.epochs", "algorithm.epochs", 1, to=whole),
    same(f"{RL}.shuffle_mini_batch", "algorithm.shuffle", False),
    choice(
        f"{RL}.adv_estimator",
        "algorithm.advantage",
        "group_norm",
        {"group_norm": "group"},
        "gae needs a critic, and there is none here: give group_norm",
    ),
    own(
        f"{RL}.clip_ratio",
        "algorithm.loss",
        0.2,
        "ppo_clip; with clip_higher_enable and ray_dapo clip_ratio_low and clip_ratio_high",
        _loss,
    ),
    part(f"{RL}.clip_higher_enable", f"{RL}.clip_ratio", False),
    part(f"{RL}.clip_ratio_low", f"{RL}.clip_ratio", 0.1),
    part(f"{RL}.clip_ratio_high", f"{RL}.clip_ratio", 0.1),
    own(
        f"{RL}.token_level_loss",
        "algorithm.aggregation",
        True,
        f"token_mean; false with ray_dapo: sequence_mean; {MEANS}",
        _aggregation,
    ),
    same(f"{RL}.entropy_coeff", "algorithm.entropy.coefficient", 0.0, to=real),
    own(
        f"{RL}.init_kl_coef",
        "algorithm.kl",
        0.01,
        "in the loss; kl → k1, abs → abs, mse → k2, low_var_kl → k3; none with ray_dapo",
        _kl,
    ),
    part(f"{RL}.kl_penalty", f"{RL}.init_kl_coef", "low_var_kl"),
    part(f"{RL}.kl_ctrl_type", f"{RL}.init_kl_coef", "fixed"),
    part(f"{RL}.kl_horizon", f"{RL}.init_kl_coef", 1000),
    part(f"{RL}.kl_target", f"{RL}.init_kl_coef", 100.0),
    only(f"{RL}.use_kl_in_reward", False, (False,), "in the loss", "of ray_ppo alone; give false"),
    only(
        f"{RL}.gamma",
        1.0,
        (1, 1.0),
        "there is no discount here",
        "there is no discount here; give 1",
    ),
    ignored(f"{RL}.lam", "of gae alone", 0.95),
    ignored(f"{RL}.advantage_whiten", "of gae alone", True),
    ignored(f"{RL}.cliprange_value", NO_CRITIC, 0.5),
    ignored(f"{RL}.beta", "of dpo alone", 0.1),
    own(
        f"{RL}.verifier_function",
        "reward.rules",
        ["base_acc"],
        "rules of ours have their names; with overlong_buffer_enable the rule overlong besides; with"
        " is_multimodal the rule geo3k",
        _reward,
    ),
    part(f"{RL}.verifier_weight", f"{RL}.verifier_function", [1.0]),
    same(f"{RL}.verifier_parallel", "reward.workers", None, to=whole),
    noted(
        f"{RL}.verifier_timeout",
        "reward.timeout",
        None,
        "their program takes 1 s, whatever it says",
        real,
    ),
    only(
        f"{RL}.rule_reward",
        True,
        (True,),
        "rewards come from rules",
        "there is no reward model here;"
        " serve one over HTTP (docs/reward-plugins.md) and name it in reward.rules",
    ),
    part(f"{RL}.overlong_buffer_enable", f"{RL}.verifier_function", False),
    part(f"{RL}.overlong_buffer", f"{RL}.verifier_function", 0),
    part(f"{RL}.overlong_buffer_penalty_factor", f"{RL}.verifier_function", 1.0),
    part(f"{RL}.rollout_max_tokens", f"{RL}.verifier_function", 2048),
    own(
        f"{RL}.filter_groups_enable",
        "algorithm.dynamic_sampling",
        False,
        "with ray_dapo groups in which the metric is equal are replaced",
        _filtering,
    ),
    part(f"{RL}.filter_groups_metric", f"{RL}.filter_groups_enable", "acc"),
    part(f"{RL}.filter_groups_max_batches", f"{RL}.filter_groups_enable", 1),
    part(f"{RL}.filter_groups_train_batch_size", f"{RL}.filter_groups_enable", 1),
    part(f"{RL}.use_dynamic_bsz", f"{MEGATRON_TRAINING}.micro_batch_size", False),
    part(f"{RL}.max_packing_token_size", f"{MEGATRON_TRAINING}.micro_batch_size", 4096),
    part(f"{RL}.update_max_packing_token_size", f"{MEGATRON_TRAINING}.micro_batch_size"),
    ignored(f"{RL}.ref_max_packing_token_size", ONE_SIZE),
    ignored(f"{RL}.actor_max_packing_token_size", ONE_SIZE),
    ignored(f"{RL}.dynamic_max_batch_size", "trainer.micro_batch_tokens bounds tokens alone"),
    ignored(f"{RL}.ref_dynamic_max_batch_size", "trainer.micro_batch_tokens bounds tokens alone"),
    ignored(f"{RL}.actor_dynamic_max_batch_size", "trainer.micro_batch_tokens bounds tokens alone"),
    ignored(
        f"{RL}.update_dynamic_max_batch_size", "trainer.micro_batch_tokens bounds tokens alone"
    ),
    ignored(f"{RL}.ref_forward_micro_batch_size", ONE_SIZE),
    ignored(f"{RL}.actor_forward_micro_batch_size", ONE_SIZE),
    ignored(f"{RL}.vit_forward_micro_batch_size", IN_TRAINER),
    ignored(f"{RL}.use_remove_padding", PADDING, False),
    ignored(
        f"{RL}.use_dp_batch_balance", "micro-batches are always balanced over the ranks", False
    ),
    ignored(f"{RL}.actor_rollout_dispatch_size", GROUPS),
    ignored(f"{RL}.actor_logprob_dispatch_size", GROUPS),
    ignored(f"{RL}.actor_update_dispatch_size", GROUPS),
    ignored(f"{RL}.ref_dispatch_size", GROUPS),
    ignored(f"{RL}.reward_dispatch_size", GROUPS),
    ignored(f"{RL}.dynamic_sampling_dispatch_size", GROUPS),
    ignored(f"{RL}.adv_dispatch_size", GROUPS),
    ignored(f"{RL}.critic_update_dispatch_size", NO_CRITIC),
    ignored(f"{RL}.critic_value_dispatch_size", NO_CRITIC),
    ignored(f"{RL}.kl_dispatch_size", GROUPS),
    ignored(f"{RL}.actor_image_embeds_dispatch_size", IN_TRAINER),
    ignored(f"{RL}.num_samples_per_step", GROUPS),
    own(
        f"{RL}.is_multimodal",
        "data.image_key, data.min_pixels, data.max_pixels",
        False,
        "true: the column `images`, scaled to between 512 x 512 and 2048 x 2048 pixels as there; the reward is"
        " the rule geo3k, whatever verifier_function says",
        _images,
    ),
    ignored(f"{RL}.reuse_image_embeds", ONCE, False),
    ignored(
        f"{RL}.colocate_actor_and_vit",
        f"{IN_TRAINER}; trainer.pipeline_layers [0, N] gives it ranks of its own",
        False,
    ),
    own(
        f"{RL}.integrated_mode_config.ref_model_load_path",
        "",
        None,
        "the reference is always model.path, also after a resume",
        _reference,
    ),
    ignored(f"{RL}.integrated_mode_config.*", HERE),
    ignored(f"{RL}.use_integrated_worker", TURNS, True),
    ignored(
        f"{RL}.share_backbone", "with adapters the reference is the model without them, always"
    ),
    ignored(f"{RL}.tp_split_expert", "actor_config.moe_tp_extend_ep says how experts are split"),
    only(
        f"{RL}.multi_turn_enable",
        False,
        (False,),
        "one turn",
        "answers have one turn here, without tools; give false",
    ),
    ignored(f"{RL}.tool_config_path", "one turn"),
    ignored(f"{RL}.max_tool_calls", "one turn"),
    ignored(f"{RL}.max_parallel_calls", "one turn"),
    ignored(f"{RL}.max_total_response_length", "one turn"),
    ignored(f"{RL}.max_tool_response_length", "one turn"),
    ignored(f"{RL}.tool_response_truncate_side", "one turn"),
    ignored(f"{RL}.tool_parser_format", "one turn"),
    ignored(f"{RL}.blocking", GROUPS, True),
    ignored(f"{RL}.async_engine", GROUPS, False),
    ignored(f"{RL}.guarantee_order", "groups train in prompt order, always", False),
    own(
        f"{RL}.partial_rollout_max_split",
        "",
        1,
        "an answer goes on after a change of weights, with run.max_lag above 0",
        _partial,
    ),
    ignored(f"{RL}.require_max_age_all_finished", "run.max_lag is a bound that holds", True),
    ignored(f"{RL}.zmq_communication", "services speak gRPC", True),
    ignored(f"{RL}.data_strategy", GROUPS, "td"),
    ignored(f"{RL}.transfer_queue_data_shard_num", GROUPS),
    ignored(f"{RL}.transfer_queue_data_shard_port_base", GROUPS),
    ignored(f"{RL}.hccl_buffersize", "export HCCL_BUFFSIZE", 256),
    ignored(f"{RL}.runtime_env_path", "variables are those of the shell that starts the run"),
    ignored(f"{RL}.num_cpus_for_local_task", "of Ray"),
    ignored(f"{RL}.num_cpus_for_placement_group", "of Ray"),
    ignored(
        f"{RL}.log_max_throughput", "tokens are counted, not taken for the longest answer's", True
    ),
    ignored(f"{RL}.use_tensorboard", "always", False),
    own(f"{RL}.use_wandb", "metrics.sinks", False, "[wandb]", _sinks),
    own(f"{RL}.use_swanlab", "metrics.sinks", False, "[swanlab]", _sinks),
    same(f"{RL}.wandb_project", "metrics.project", None),
    own(f"{RL}.wandb_exp_name", "run.name", None, "letters, digits, `.`, `-` and `_`", run_name),
    ignored(f"{RL}.wandb_save_dir", "its files lie in the run folder"),
    ignored(f"{RL}.swanlab_mode", "SWANLAB_MODE in the environment"),
    same(f"{RL}.swanlab_project", "metrics.project", None),
    own(f"{RL}.swanlab_exp_name", "run.name", None, "letters, digits, `.`, `-` and `_`", run_name),
    ignored(f"{RL}.swanlab_save_dir", "its files lie in the run folder"),
    # generate_config.
    same(f"{GENERATE}.infer_tensor_parallel_size", "rollout.tensor_parallel", 8, to=whole),
    only(
        f"{GENERATE}.infer_pipeline_parallel_size",
        1,
        (1,),
        "one stage",
        "a replica has one stage; give 1",
    ),
    ignored(
        f"{GENERATE}.infer_expert_parallel_size",
        "experts of a replica are split by rollout.tensor_parallel",
        1,
    ),
    ignored(
        f"{GENERATE}.enable_expert_parallel",
        "experts of a replica are split by rollout.tensor_parallel",
        False,
    ),
    same(f"{GENERATE}.max_num_seqs", "rollout.max_concurrency", 1, to=whole),
    own(
        f"{GENERATE}.max_model_len",
        "",
        2048,
        LENGTHS,
        longest_sequence(f"{RL}.max_prompt_length", f"{SAMPLING}.max_tokens"),
    ),
    ignored(f"{GENERATE}.max_num_batched_tokens", "vLLM's own default", 2048),
    choice(
        f"{GENERATE}.dtype", "model.dtype", "bfloat16", {"bfloat16": "bfloat16"}, "give bfloat16"
    ),
    noted(f"{GENERATE}.gpu_memory_utilization", "rollout.memory_fraction", 0.5, MEMORY, real),
    ignored(f"{GENERATE}.offload_train_optimizer", TURNS, False),
    ignored(f"{GENERATE}.offload_train_grad", TURNS, False),
    ignored(f"{GENERATE}.offload_train_param", TURNS, False),
    same(
        f"{GENERATE}.enable_prefix_caching",
        "rollout.prefix_cache",
        None,
        "their default is false; it changes no answer, so without the key it is on",
        is_on,
    ),
    ignored(f"{GENERATE}.num_scheduler_steps", "of vLLM's version 0"),
    same(f"{GENERATE}.enforce_eager", "rollout.eager", True),
    only(
        f"{GENERATE}.torchair_graph",
        False,
        (False,),
        "rollout.eager chooses between captured graphs and none",
        "rollout.eager chooses between captured graphs and none; give false",
    ),
    ignored(f"{GENERATE}.ascend_scheduler_config_enabled", "vLLM's own scheduler", True),
    own(f"{GENERATE}.limit_mm_image_per_prompt", "rollout.limit_images", 1, "", limit_images),
    ignored(f"{GENERATE}.limit_mm_video_per_prompt", "no model here takes videos", 0),
    ignored(f"{GENERATE}.trust_remote_code", "code of a model's folder is never run", False),
    ignored(f"{GENERATE}.eplb_token_collects", "experts stay where they are"),
    ignored(f"{GENERATE}.eplb_token_save_path", "experts stay where they are"),
    ignored(f"{GENERATE}.expert_map_path", "experts stay where they are"),
    same(f"{SAMPLING}.max_tokens", "rollout.max_tokens", 128, to=whole),
    same(f"{SAMPLING}.temperature", "rollout.temperature", 0.2, to=real),
    only(f"{SAMPLING}.top_p", 1, (1, 1.0), WHOLE, f"{WHOLE}; give 1"),
    only(f"{SAMPLING}.top_k", 50, (-1, 0), WHOLE, f"{WHOLE}; give -1 (their default is 50)"),
    only(f"{SAMPLING}.min_p", 0, (0, 0.0), WHOLE, f"{WHOLE}; give 0"),
    ignored(f"{SAMPLING}.logprobs", "always", 1),
    ignored(f"{SAMPLING}.detokenize", "always", False),
    ignored(f"{SAMPLING}.seed", "each completion's seed follows from run.seed"),
    # Whole sections.
    ignored("vit_config.*", "the vision tower is read from model.path, and lies with the trainer"),
    own("ref_config.load", "", None, "the reference is always model.path", _reference),
    ignored("ref_config.*", "the reference has the trainer's layout"),
    ignored("reward_config.*", "rewards come from rules"),
    ignored("critic_config.*", NO_CRITIC),
    ignored("profiler_config.*", "docs/observability.md has what each process reports"),
    ignored("msprobe_config.*", "there is no dump of tensors here"),
)

MINDSPEED_RL = System(
    "mindspeed-rl",
    "MindSpeed-RL",
    ("megatron_training", "rl_config"),
    ROWS,
    # Its loss does not look at the engine's log-probabilities.
    {"algorithm.correction.weights": "none"},
)
