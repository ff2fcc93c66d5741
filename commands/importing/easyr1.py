"""EasyR1's keys, of its examples/ since April 2025. Their meaning and defaults: verl/trainer/config.py and
verl/workers/*/config.py of hiyouga/EasyR1, July 2026."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commands.importing import shared
from commands.importing.conversion import SourceSystem
from commands.importing.layout import Shape
from commands.importing.rows import (
    NOT_SET,
    KeyOutcome,
    KeyRow,
    Theirs,
    becomes,
    choice,
    deny,
    ignored,
    is_on,
    nothing,
    only,
    own,
    parts,
    refused,
    same,
    switch,
    under,
)
from commands.importing.rows_file import column_names, has_template, has_words_around

ACTOR = "worker.actor"
ROLLOUT = "worker.rollout"
OPTIMIZER = f"{ACTOR}.optim.strategy"
VALIDATION = f"{ROLLOUT}.val_override_config"
RULES = ("math", "r1v", "dapo", "geo3k")
"""Their published reward functions, by the name of the file: rules of ours have these names."""
OPTIONS = {
    "max_response_length": "max_tokens",
    "overlong_buffer_length": "buffer",
    "overlong_penalty_factor": "factor",
}
"""The options of their functions -> those of our rules."""
SKIPPED = "a longer prompt is skipped, counted and reported"
PROMPTS = {"math": "think_boxed", "r1v": "r1v", "dapo": "dapo"}
"""Their files of examples/format_prompt -> the same words as a template of `trimaran data prepare`."""
BOUNDS = {"clip_low": "clip_ratio_low", "clip_high": "clip_ratio_high"}
LOSSES = {
    "ppo_clip": {**BOUNDS, "dual_clip": "clip_ratio_dual"},
    "gspo": BOUNDS,
    "cispo": BOUNDS,
    "sapo": {"tau_positive": "tau_positive", "tau_negative": "tau_negative"},
}
LOSS_TYPES = {
    "default": "ppo_clip",
    "gspo": "gspo",
    "gspo_token": "gspo",
    "cispo": "cispo",
    "sapo": "sapo",
}
LOSS_NOTES = {"gspo": "clip_ratio_dual is not applied to the ratio of a whole completion here"}
MEANS = {
    "token": "token_mean",
    "seq": becomes(
        {"algorithm.aggregation": "sequence_mean"},
        "there the mean of each micro-batch weighs as its tokens do; here every completion counts alike",
    ),
}
OPTIMIZERS = {
    "adamw": becomes({"trainer.optimizer": "adamw", "trainer.beta2": 0.999}),
    "adamw_bf16": becomes(
        {"trainer.optimizer": "adamw_bf16", "trainer.beta2": 0.99},
        "a beta2 of 0.999 cannot work with moments in bfloat16; 0.99 is taken",
    ),
}
"""With their betas, 0.9 and 0.999."""
FILTERED = (
    "there a group goes whose mean of filter_key is not between filter_low and filter_high; here one whose rewards"
    " are all equal. With rewards of 0 and 1 these are the same groups. When no more may be replaced they end, and"
    " we train on what there is. algorithm.dynamic_sampling.term looks at one reward rule alone"
)


def _steps(value: Any, theirs: Theirs) -> KeyOutcome:
    batch, files = theirs["data.rollout_batch_size"], theirs["data.train_files"]
    return shared.steps_of(theirs["trainer.max_steps"], value, batch, files, "trainer.max_steps")


def _prompt_key(value: Any, theirs: Theirs) -> KeyOutcome:
    found = [column_names(file) or [value] for file in shared.paths_of(theirs["data.train_files"])]
    if found and all(value not in names and "prompt" in names for names in found):
        text = f"the rows have no column {value}; they have prompt, and it is taken"
        return becomes({"data.prompt_key": "prompt"}, text)
    return becomes({"data.prompt_key": value})


def _format_prompt(value: Any, theirs: Theirs) -> KeyOutcome:
    if not value:
        return NOT_SET
    name = PROMPTS.get(Path(str(value)).stem)
    files = shared.paths_of(theirs["data.train_files"])
    if name and files and all(has_template(file, name) for file in files):
        return nothing(f"it stands around the questions already: the template {name}")
    return deny(
        "a template of the prompt is applied when the data are prepared: give data.train_files=FILE of `trimaran data"
        f" prepare …{f' --template {name}' if name else ''}`, or leave it out with ~data.format_prompt"
    )


def _system_prompt(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None:
        return NOT_SET
    has_words = any(map(has_words_around, shared.paths_of(theirs["data.train_files"])))
    text = (
        "the rows have words around their questions already, and this comes on top, but where a row has a system"
        " message of its own; prepare them with `--template chat`, or leave it out with ~data.system_prompt"
    )
    return becomes({"data.system": value}, text if has_words else "")


def _updates(value: Any, theirs: Theirs) -> KeyOutcome:
    batch = int(theirs["data.rollout_batch_size"])
    return shared.updates_of(batch, int(value), f"{ACTOR}.global_batch_size")


def _micro_batch(value: Any, theirs: Theirs) -> KeyOutcome:
    longest = int(theirs["data.max_prompt_length"]) + int(theirs["data.max_response_length"])
    return becomes({"trainer.micro_batch_tokens": int(value) * longest})


def _kl(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs.is_on("algorithm.disable_kl"):
        return shared.NO_KL
    place = "loss" if theirs.is_on("algorithm.use_kl_loss") else "reward"
    return shared.kl_in(place, value, theirs["algorithm.kl_penalty"])


def _filtering(value: Any, theirs: Theirs) -> KeyOutcome:
    if not is_on(value):
        return shared.ALL_GROUPS
    batch = int(theirs["data.rollout_batch_size"])
    share = int(theirs["data.mini_rollout_batch_size"] or batch) / batch
    return shared.dynamic_sampling(int(theirs["trainer.max_try_make_batch"]), share, FILTERED)


def _main_weights(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs[OPTIMIZER] == "adamw_bf16":
        return nothing("trainer.optimizer: adamw_bf16 keeps weights in bfloat16")
    return shared.in_float32(shared.MAIN_WEIGHTS)(value, theirs)


def _warmup(value: Any, theirs: Theirs) -> KeyOutcome:
    share, epochs = theirs[f"{ACTOR}.optim.lr_warmup_ratio"], theirs["trainer.total_epochs"]
    steps = shared.known_steps(_steps(epochs, theirs))
    return shared.warm_up(value, share if value is None else 0, steps, "trainer.max_steps")


def _overlong(value: Any, theirs: Theirs) -> KeyOutcome:
    if is_on(value):
        return nothing(SKIPPED)
    return becomes({}, f"{SKIPPED}; there it is cut on the right")


def _devices(value: Any, theirs: Theirs) -> KeyOutcome:
    return Shape(
        devices=int(value) * int(theirs["trainer.nnodes"]),
        rollout_tensor=int(theirs[f"{ROLLOUT}.tensor_parallel_size"]),
        context=int(theirs[f"{ACTOR}.ulysses_size"]),
        distributes=theirs[OPTIMIZER] == "adamw",
    ).outcome(theirs.in_turns)


def _reward(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None:
        return deny("give worker.reward.reward_function=FILE:NAME")
    path, _, name = str(value).partition(":")
    options = theirs.under("worker.reward.reward_function_kwargs")
    stem = Path(path).stem
    is_published = Path(path).parent.name == "reward_function" or path == stem  # before May 2025
    if stem not in RULES or not is_published:
        return shared.reward_function(path, name or "main", options)
    ours = {OPTIONS.get(key, key): option for key, option in options.items()}
    rule: Any = {"weight": 1.0, "options": ours} if ours else 1.0
    text = f"their {stem}.py is the rule {stem} here; docs/reward-rules.md has it by example"
    return becomes({"reward.rules": {stem: rule}}, text)


def _reference_offload(value: Any, theirs: Theirs) -> KeyOutcome:
    has_adapters = int(theirs[f"{ACTOR}.model.lora.rank"] or 0) > 0
    return shared.offload_reference(value, _kl(theirs["algorithm.kl_coef"], theirs), has_adapters)


def _lora(value: Any, theirs: Theirs) -> KeyOutcome:
    alpha, targets = (theirs[f"{ACTOR}.model.lora.{key}"] for key in ("alpha", "target_modules"))
    return shared.lora(value, alpha, targets)


def _validation_samples(value: Any, theirs: Theirs) -> KeyOutcome:
    number = theirs[f"{ROLLOUT}.n"] if value is None else value
    return shared.samples(number, theirs[f"{VALIDATION}.temperature"])


DATA = under(
    "data",
    own("train_files", None, shared.training_file("data.train_files")),
    own(
        "val_files",
        None,
        shared.validation_file("trainer.val_freq", max_prompts=shared.ALL_PROMPTS),
    ),
    own("prompt_key", "prompt", _prompt_key),
    same("answer_key", "data.answer_key", "answer"),
    own("image_key", "images", shared.image_key),
    refused("image_dir", "write whole paths into the rows"),
    same("max_prompt_length", "rollout.max_prompt_tokens", 512, int),
    same("max_response_length", "rollout.max_tokens", 512, int),
    same("rollout_batch_size", "run.groups_per_step", 512, int),
    *parts({"mini_rollout_batch_size": None}),
    own("format_prompt", None, _format_prompt),
    refused("override_chat_template", f"{shared.FOLDER}: put it there"),
    own("system_prompt", None, _system_prompt),
    same("shuffle", "data.shuffle", True),
    same("seed", "run.seed", 1, int),
    same("min_pixels", "data.min_pixels", 262144, int),
    same("max_pixels", "data.max_pixels", 4194304, int),
    own("filter_overlong_prompts", True, _overlong),
    *ignored("video_key video_fps", "no model here takes videos"),
    *ignored("val_batch_size", shared.ROWS_OF_FILE),
)

ADVANTAGES = {
    "grpo": "group",
    "rloo": "rloo",
    "remax": "remax",
    "reinforce_plus_plus": "reinforce_pp",
    "grpo_passk": {"type": "best_of_group", "normalize_std": True},
}
ALGORITHM = under(
    "algorithm",
    choice(
        "adv_estimator",
        "algorithm.advantage",
        "grpo",
        ADVANTAGES,
        "gae needs a critic, and there is none here: ",
    ),
    own("kl_coef", 1e-3, _kl),
    *parts({"disable_kl": False, "use_kl_loss": False, "kl_penalty": "kl"}),
    own("online_filtering", False, _filtering),
    *parts({"filter_key": "overall", "filter_low": 0.01, "filter_high": 0.99}),
)

THE_ACTOR = under(
    ACTOR,
    own("global_batch_size", 256, _updates),
    own("micro_batch_size_per_device_for_update", 4, _micro_batch),
    same("max_grad_norm", "trainer.clip_grad", 1.0, float),
    own("loss_type", "default", shared.loss(LOSSES, LOSS_TYPES, ACTOR, LOSS_NOTES)),
    *parts({"clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "clip_ratio_dual": 3.0}),
    *parts({"tau_positive": 1.0, "tau_negative": 1.05}),
    choice("loss_avg_mode", "algorithm.aggregation", "token", MEANS),
    same("ppo_epochs", "algorithm.epochs", 1, int),
    same("ulysses_size", "trainer.context_parallel", 1, int),
    own("model.model_path", None, shared.model_folder),
    same("model.enable_gradient_checkpointing", "trainer.recompute", True),
    switch("model.freeze_vision_tower", "trainer.freeze", ["*visual.*"]),
    own("model.lora.rank", 0, _lora),
    *parts({"model.lora.alpha": 64, "model.lora.target_modules": "all-linear"}),
    own("model.lora.exclude_modules", None, shared.excluded),
    same("optim.lr", "trainer.learning_rate", 1e-6, float),
    same("optim.weight_decay", "trainer.weight_decay", 1e-2, float),
    choice("optim.strategy", "trainer.optimizer", "adamw", OPTIMIZERS),
    own("optim.lr_warmup_steps", None, _warmup),
    *parts({"optim.lr_warmup_ratio": 0.0}),
    own("optim.lr_scheduler_type", "constant", shared.schedule("constant", "cosine")),
    own("fsdp.torch_dtype", None, _main_weights),
    switch("offload.offload_optimizer", "trainer.offload", ["optimizer"], shared.ROOM),
    *ignored("offload.offload_params", shared.TURNS),
    *ignored(
        "fsdp.enable_full_shard fsdp.enable_cpu_offload fsdp.enable_rank0_init", shared.LAYOUT
    ),
    *ignored("micro_batch_size_per_device_for_experience dynamic_batching", shared.LIMIT),
    *ignored("padding_free", shared.PADDING),
    *ignored("model.trust_remote_code", shared.DEVICE),
)

REFERENCE = under(
    "worker.ref",
    own("fsdp.enable_cpu_offload", False, _reference_offload),
    *ignored(
        "fsdp.enable_full_shard fsdp.enable_rank0_init offload.offload_params",
        "the reference has the trainer's layout",
    ),
)

GENERATION = under(
    ROLLOUT,
    same("n", "rollout.group_size", 1, int),
    same("temperature", "rollout.temperature", 1.0, float),
    only("top_p", (1.0,), f"{shared.WHOLE}1"),
    same("limit_images", "rollout.limit_images", 0, shared.above(0)),
    same("gpu_memory_utilization", "rollout.memory_fraction", 0.6, float, shared.MEMORY),
    same("enforce_eager", "rollout.eager", False),
    same("tensor_parallel_size", "rollout.tensor_parallel", 2, int),
    own("val_override_config.n", None, _validation_samples),
    *parts({"val_override_config.temperature": None}),
    same("val_override_config.top_p", "validation.top_p", None, shared.below_1),
    *ignored("enable_chunked_prefill max_num_batched_tokens", shared.ENGINE),
    *ignored("disable_tqdm", shared.REPORTS),
)

REWARD = under(
    "worker.reward",
    own("reward_function", None, _reward),
    *parts({"reward_function_kwargs.*": None}),
    *ignored("reward_type", "the function's parameters say it"),
)

THE_RUN: tuple[KeyRow, ...] = (
    *shared.run_rows(
        _steps,
        15,
        "easy_r1",
        "demo",
        "val_freq",
        "save_limit",
        "save_checkpoint_path",
        "val_generations_to_log",
    ),
    *under(
        "trainer",
        *parts({"max_steps": None, "max_try_make_batch": 20}),
        own("n_gpus_per_node", 8, _devices),
        only(
            "save_model_only",
            (False,),
            "a checkpoint holds the optimizer too; run.checkpoint_models adds the model as a Hugging Face folder",
        ),
        refused(
            "load_checkpoint_path",
            "their checkpoints are not read: merge one into a Hugging Face folder by their scripts/model_merger.py,"
            " and give it as model_path",
        ),
        *ignored("find_last_checkpoint", "`trimaran train --resume RUN` goes on with a run"),
    ),
)

EASYR1 = SourceSystem(
    "easyr1",
    "EasyR1",
    ("worker",),
    (*DATA, *ALGORITHM, *THE_ACTOR, *REFERENCE, *GENERATION, *REWARD, *THE_RUN),
    # Their loss takes the trainer's own log-probabilities for old, and does not look at the engine's.
    {"algorithm.correction.weights": "none", "model.dtype": "bfloat16", "trainer.beta1": 0.9},
    # Names of before May 2025, which go before the newer ones there.
    {
        "trainer.total_episodes": "trainer.total_epochs",
        f"{ACTOR}.ulysses_sequence_parallel_size": f"{ACTOR}.ulysses_size",
        "worker.reward.compute_score": "worker.reward.reward_function",
    },
)
