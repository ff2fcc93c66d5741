"""EasyR1's keys. Their meaning and defaults: verl/trainer/config.py and verl/workers/*/config.py of
hiyouga/EasyR1, July 2026, and its examples/config.yaml since April 2025."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commands.importing import shared
from commands.importing.conversion import SourceSystem
from commands.importing.rows import (
    NOT_SET,
    Convert,
    KeyOutcome,
    KeyRow,
    Theirs,
    choice,
    ignored,
    is_on,
    only,
    own,
    parts,
    refused,
    same,
    switch,
)
from commands.importing.rows_file import column_names, has_template, has_words_around

ACTOR = "worker.actor"
ROLLOUT = "worker.rollout"
LORA = f"{ACTOR}.model.lora"
RULES = ("math", "r1v", "dapo", "geo3k")
"""Their published reward functions, by the name of the file: rules of ours have these names."""
SKIPPED = "a longer prompt is skipped, counted and reported"
PROMPTS = {"math": "think_boxed", "r1v": "r1v", "dapo": "dapo"}
"""Their files of examples/format_prompt -> the same words as a template of `trimaran data prepare`."""


def _steps(value: Any, theirs: Theirs) -> KeyOutcome:
    batch, files = theirs["data.rollout_batch_size"], theirs["data.train_files"]
    return shared.steps_of(theirs["trainer.max_steps"], value, batch, files, "trainer.max_steps")


def _num_steps(theirs: Theirs) -> int | None:
    return shared.known_steps(_steps(theirs["trainer.total_epochs"], theirs))


def _validation(value: Any, theirs: Theirs) -> KeyOutcome:
    if not shared.is_validated(theirs, "trainer.val_freq"):
        return KeyOutcome("ignored", "nothing is validated")
    outcome = shared.data_file("data.validation", "data.val_files")(value, theirs)
    if not outcome.settings:
        return outcome
    return KeyOutcome(
        outcome.fate,
        outcome.text,
        {**outcome.settings, "validation.max_prompts": shared.ALL_PROMPTS},
    )


def _prompt_key(value: Any, theirs: Theirs) -> KeyOutcome:
    found = [column_names(file) or [value] for file in shared.paths_of(theirs["data.train_files"])]
    if found and all(value not in names and "prompt" in names for names in found):
        text = f"the rows have no column {value}; they have prompt, and it is taken"
        return KeyOutcome("noted", text, {"data.prompt_key": "prompt"})
    return KeyOutcome("mapped", "", {"data.prompt_key": value})


def _format_prompt(value: Any, theirs: Theirs) -> KeyOutcome:
    if not value:
        return NOT_SET
    name = PROMPTS.get(Path(str(value)).stem)
    files = shared.paths_of(theirs["data.train_files"])
    if name and files and all(has_template(file, name) for file in files):
        return KeyOutcome("ignored", f"it stands around the questions already: the template {name}")
    wanted = f" --template {name}" if name else ""
    return KeyOutcome(
        "refused",
        "a template of the prompt is applied when the data are prepared: give data.train_files=FILE of"
        f" `trimaran data prepare …{wanted}`, or leave it out with ~data.format_prompt",
    )


def _system_prompt(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None:
        return NOT_SET
    settings = {"data.system": value}
    if any(has_words_around(file) for file in shared.paths_of(theirs["data.train_files"])):
        text = (
            "the rows have words around their questions already, and this comes on top, but where a row has a"
            " system message of its own; prepare them with `--template chat`, or leave it out with"
            " ~data.system_prompt"
        )
        return KeyOutcome("noted", text, settings)
    return KeyOutcome("mapped", "", settings)


def _updates(value: Any, theirs: Theirs) -> KeyOutcome:
    return shared.updates_of(
        int(theirs["data.rollout_batch_size"]), int(value), f"{ACTOR}.global_batch_size"
    )


def _micro_batch(value: Any, theirs: Theirs) -> KeyOutcome:
    longest = int(theirs["data.max_prompt_length"]) + int(theirs["data.max_response_length"])
    return KeyOutcome("mapped", "", {"trainer.micro_batch_tokens": int(value) * longest})


def _kl(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs.is_on("algorithm.disable_kl"):
        return shared.NO_KL
    place = "loss" if theirs.is_on("algorithm.use_kl_loss") else "reward"
    adaptive = None
    if theirs["algorithm.kl_type"] == "adaptive":
        adaptive = {
            "target": float(theirs["algorithm.kl_target"]),
            "horizon": int(theirs["algorithm.kl_horizon"]),
        }
    return shared.kl_in(place, value, theirs["algorithm.kl_penalty"], adaptive)


def _filtering(value: Any, theirs: Theirs) -> KeyOutcome:
    if not is_on(value):
        return KeyOutcome("ignored", "every group trains")
    batch = int(theirs["data.rollout_batch_size"])
    return shared.dynamic_sampling(
        tries=int(theirs["trainer.max_try_make_batch"]),
        share=int(theirs["data.mini_rollout_batch_size"] or batch) / batch,
        text="there a group goes whose mean of filter_key is not between filter_low and filter_high; here one"
        " whose rewards are all equal. With rewards of 0 and 1 these are the same groups. When no more"
        " may be replaced they end, and we train on what there is. algorithm.dynamic_sampling.term"
        " looks at one reward rule alone",
    )


def _loss(value: Any, theirs: Theirs) -> KeyOutcome:
    low, high = float(theirs[f"{ACTOR}.clip_ratio_low"]), float(theirs[f"{ACTOR}.clip_ratio_high"])
    dual = float(theirs[f"{ACTOR}.clip_ratio_dual"])
    bounds = {"clip_low": low, "clip_high": high}
    if value == "default":
        loss: dict[str, Any] = {"type": "ppo_clip", **bounds, "dual_clip": dual}
        return KeyOutcome("mapped", "", {"algorithm.loss": loss})
    if value in ("gspo", "gspo_token"):
        text = "clip_ratio_dual is not applied to the ratio of a whole completion here"
        return KeyOutcome("noted", text, {"algorithm.loss": {"type": "gspo", **bounds}})
    if value == "cispo":
        return KeyOutcome("mapped", "", {"algorithm.loss": {"type": "cispo", **bounds}})
    if value == "sapo":
        taus = {name: float(theirs[f"{ACTOR}.{name}"]) for name in ("tau_positive", "tau_negative")}
        return KeyOutcome("mapped", "", {"algorithm.loss": {"type": "sapo", **taus}})
    return KeyOutcome("refused", "losses are default, gspo, gspo_token, cispo and sapo")


def _main_weights(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs[f"{ACTOR}.optim.strategy"] == "adamw_bf16":
        return KeyOutcome("ignored", "trainer.optimizer: adamw_bf16 keeps weights in bfloat16")
    return shared.in_float32(shared.MAIN_WEIGHTS)(value, theirs)


def _betas(value: Any, theirs: Theirs) -> KeyOutcome:
    beta1, beta2 = map(float, value)
    settings = {"trainer.beta1": beta1, "trainer.beta2": beta2}
    if theirs[f"{ACTOR}.optim.strategy"] == "adamw_bf16" and beta2 > 0.99:
        text = f"{beta2:g} cannot work with moments in bfloat16; 0.99 is taken"
        return KeyOutcome("noted", text, {**settings, "trainer.beta2": 0.99})
    return KeyOutcome("mapped", "", settings)


def _warmup_ratio(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs[f"{ACTOR}.optim.lr_warmup_steps"] is not None or not float(value):
        return KeyOutcome("ignored", "lr_warmup_steps goes before, or there is no warm-up")
    return shared.warm_up(
        shared.warm_up_share(float(value), _num_steps(theirs), "trainer.max_steps")
    )


def _warmup_steps(value: Any, theirs: Theirs) -> KeyOutcome:
    return NOT_SET if value is None else shared.warm_up(int(value))


def _mean(value: Any, theirs: Theirs) -> KeyOutcome:
    if value == "token":
        return KeyOutcome("mapped", "", {"algorithm.aggregation": "token_mean"})
    if value == "seq":
        text = "there the mean of each micro-batch weighs as its tokens do; here every completion counts alike"
        return KeyOutcome("noted", text, {"algorithm.aggregation": "sequence_mean"})
    return KeyOutcome("refused", "give token or seq")


def _overlong(value: Any, theirs: Theirs) -> KeyOutcome:
    if is_on(value):
        return KeyOutcome("ignored", SKIPPED)
    return KeyOutcome("noted", f"{SKIPPED}; there it is cut on the right")


def _devices(value: Any, theirs: Theirs) -> KeyOutcome:
    shape = shared.Shape(
        devices=int(value) * int(theirs["trainer.nnodes"]),
        rollout_tensor=int(theirs[f"{ROLLOUT}.tensor_parallel_size"]),
        context=int(theirs[f"{ACTOR}.ulysses_size"]),
    )
    is_plain = theirs[f"{ACTOR}.optim.strategy"] == "adamw"
    return shape.outcome(theirs.in_turns, distributes=is_plain)


def _reward(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None:
        return KeyOutcome("refused", "give worker.reward.reward_function=FILE:NAME")
    path, _, name = str(value).partition(":")
    options = theirs.under("worker.reward.reward_function_kwargs")
    stem = Path(path).stem
    is_theirs = Path(path).parent.name == "reward_function" or path == stem  # of before May 2025
    if stem in RULES and is_theirs:
        return _published(stem, options)
    return shared.reward_function(path, name or "main", options)


def _published(name: str, options: dict[str, Any]) -> KeyOutcome:
    """Their own function, which is a rule here."""
    names = {
        "max_response_length": "max_tokens",
        "overlong_buffer_length": "buffer",
        "overlong_penalty_factor": "factor",
    }
    ours = {names.get(key, key): value for key, value in options.items()}
    rule: Any = {"weight": 1.0, "options": ours} if ours else 1.0
    text = f"their {name}.py is the rule {name} here; docs/reward-rules.md has it by example"
    return KeyOutcome("noted", text, {"reward.rules": {name: rule}})


def _reference_offload(value: Any, theirs: Theirs) -> KeyOutcome:
    term = _kl(theirs["algorithm.kl_coef"], theirs).settings
    return shared.offload_reference(
        bool(term["algorithm.kl.coefficient"]), _has_adapters(theirs), value
    )


def _has_adapters(theirs: Theirs) -> bool:
    return int(theirs[f"{LORA}.rank"] or 0) > 0


def _lora(value: Any, theirs: Theirs) -> KeyOutcome:
    return shared.lora(value, theirs[f"{LORA}.alpha"], theirs[f"{LORA}.target_modules"])


def _every(ours: str) -> Convert:
    return lambda value, theirs: shared.every(value, ours, _num_steps(theirs))


def _validation_samples(value: Any, theirs: Theirs) -> KeyOutcome:
    number = theirs[f"{ROLLOUT}.n"] if value is None else value
    return shared.samples(
        number, theirs[f"{ROLLOUT}.val_override_config.temperature"], is_greedy=False
    )


def _kept(value: Any, theirs: Theirs) -> KeyOutcome:
    return shared.kept(value, _num_steps(theirs), theirs["trainer.save_freq"])


DATA: tuple[KeyRow, ...] = (
    own("data.train_files", None, shared.data_file("data.train", "data.train_files")),
    own("data.val_files", None, _validation),
    own("data.prompt_key", "prompt", _prompt_key),
    same("data.answer_key", "data.answer_key", "answer"),
    own("data.image_key", "images", shared.image_key),
    refused("data.image_dir", "write whole paths into the rows"),
    same("data.max_prompt_length", "rollout.max_prompt_tokens", 512, int),
    same("data.max_response_length", "rollout.max_tokens", 512, int),
    same("data.rollout_batch_size", "run.groups_per_step", 512, int),
    *parts("data", {"mini_rollout_batch_size": None}),
    own("data.format_prompt", None, _format_prompt),
    refused("data.override_chat_template", f"{shared.FOLDER}: put it there"),
    own("data.system_prompt", None, _system_prompt),
    same("data.shuffle", "data.shuffle", True),
    same("data.seed", "run.seed", 1, int),
    same("data.min_pixels", "data.min_pixels", 262144, int),
    same("data.max_pixels", "data.max_pixels", 4194304, int),
    own("data.filter_overlong_prompts", True, _overlong),
    *ignored("data", "video_key video_fps", "no model here takes videos"),
    *ignored("data", "val_batch_size filter_overlong_prompts_workers", shared.ROWS_OF_FILE),
)

ALGORITHM: tuple[KeyRow, ...] = (
    choice(
        "algorithm.adv_estimator",
        "algorithm.advantage",
        "grpo",
        {
            "grpo": "group",
            "rloo": "rloo",
            "remax": "remax",
            "reinforce_plus_plus": "reinforce_pp",
            "grpo_passk": {"type": "best_of_group", "normalize_std": True},
        },
        "gae needs a critic, and there is none here: ",
    ),
    only("algorithm.gamma", (1.0,), "there is no discount here: give 1"),
    own("algorithm.kl_coef", 1e-3, _kl),
    own("algorithm.online_filtering", False, _filtering),
    *parts(
        "algorithm",
        {
            "disable_kl": False,
            "use_kl_loss": False,
            "kl_penalty": "kl",
            "kl_type": "fixed",
            "kl_horizon": 10000.0,
            "kl_target": 0.1,
            "filter_key": "overall",
            "filter_low": 0.01,
            "filter_high": 0.99,
        },
    ),
    *ignored("algorithm", "lam", "of gae alone"),
)

TRAINER: tuple[KeyRow, ...] = (
    own(f"{ACTOR}.global_batch_size", 256, _updates),
    own(f"{ACTOR}.micro_batch_size_per_device_for_update", 4, _micro_batch),
    same(f"{ACTOR}.max_grad_norm", "trainer.clip_grad", 1.0, float),
    own(f"{ACTOR}.loss_type", "default", _loss),
    own(f"{ACTOR}.loss_avg_mode", "token", _mean),
    *parts(
        ACTOR,
        {
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.3,
            "clip_ratio_dual": 3.0,
            "tau_positive": 1.0,
            "tau_negative": 1.05,
        },
    ),
    same(f"{ACTOR}.ppo_epochs", "algorithm.epochs", 1, int),
    same(f"{ACTOR}.ulysses_size", "trainer.context_parallel", 1, int),
    own(f"{ACTOR}.model.model_path", None, shared.model_folder),
    refused(f"{ACTOR}.model.tokenizer_path", f"{shared.FOLDER}: put it there"),
    refused(f"{ACTOR}.model.override_config.*", f"{shared.FOLDER}: write it into its config.json"),
    same(f"{ACTOR}.model.enable_gradient_checkpointing", "trainer.recompute", True),
    switch(f"{ACTOR}.model.freeze_vision_tower", "trainer.freeze", ["*visual.*"]),
    own(f"{LORA}.rank", 0, _lora),
    *parts(LORA, {"alpha": 64, "target_modules": "all-linear"}),
    own(f"{LORA}.exclude_modules", None, shared.excluded(_has_adapters)),
    same(f"{ACTOR}.optim.lr", "trainer.learning_rate", 1e-6, float),
    own(f"{ACTOR}.optim.betas", [0.9, 0.999], _betas),
    same(f"{ACTOR}.optim.weight_decay", "trainer.weight_decay", 1e-2, float),
    choice(
        f"{ACTOR}.optim.strategy",
        "trainer.optimizer",
        "adamw",
        {"adamw": "adamw", "adamw_bf16": "adamw_bf16"},
    ),
    own(f"{ACTOR}.optim.lr_warmup_ratio", 0.0, _warmup_ratio),
    own(f"{ACTOR}.optim.lr_warmup_steps", None, _warmup_steps),
    own(f"{ACTOR}.optim.min_lr_ratio", None, shared.least_rate(f"{ACTOR}.optim.lr")),
    own(f"{ACTOR}.optim.lr_scheduler_type", "constant", shared.schedule("constant", "cosine")),
    own(f"{ACTOR}.fsdp.torch_dtype", None, _main_weights),
    own(f"{ACTOR}.fsdp.mp_param_dtype", "bf16", shared.computed_in(f"{ROLLOUT}.dtype")),
    own(f"{ACTOR}.fsdp.mp_reduce_dtype", "fp32", shared.in_float32(shared.GRADIENTS)),
    switch(f"{ACTOR}.offload.offload_optimizer", "trainer.offload", ["optimizer"], shared.ROOM),
    own("worker.ref.fsdp.enable_cpu_offload", False, _reference_offload),
    *ignored("worker", "hybrid_engine actor.offload.offload_params", shared.TURNS),
    *ignored(ACTOR, "fsdp.* strategy optim.training_steps", shared.LAYOUT),
    *ignored(ACTOR, "micro_batch_size_per_device_for_experience dynamic_batching", shared.LIMIT),
    *ignored(ACTOR, "padding_free", shared.PADDING),
    *ignored(ACTOR, "use_torch_compile model.trust_remote_code", shared.DEVICE),
    *ignored("worker.ref", "strategy fsdp.* offload.*", "the reference has the trainer's layout"),
    *ignored("worker", "critic.*", shared.NO_CRITIC),
)

GENERATION: tuple[KeyRow, ...] = (
    only(f"{ROLLOUT}.name", ("vllm",), "the engine is vLLM: give vllm"),
    same(f"{ROLLOUT}.n", "rollout.group_size", 1, int),
    same(f"{ROLLOUT}.temperature", "rollout.temperature", 1.0, float),
    only(f"{ROLLOUT}.top_p", (1.0,), f"{shared.WHOLE}1"),
    only(f"{ROLLOUT}.top_k", (-1, 0), f"{shared.WHOLE}-1"),
    only(f"{ROLLOUT}.ignore_eos", (False,), "an answer ends at its end: give false"),
    own(f"{ROLLOUT}.limit_images", 0, shared.limit_images),
    choice(
        f"{ROLLOUT}.dtype",
        "model.dtype",
        "bf16",
        {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"},
    ),
    same(f"{ROLLOUT}.gpu_memory_utilization", "rollout.memory_fraction", 0.6, float, shared.MEMORY),
    same(f"{ROLLOUT}.enforce_eager", "rollout.eager", False),
    same(f"{ROLLOUT}.tensor_parallel_size", "rollout.tensor_parallel", 2, int),
    own(
        f"{ROLLOUT}.max_model_len",
        None,
        shared.longest_sequence("data.max_prompt_length", "data.max_response_length"),
    ),
    own(f"{ROLLOUT}.val_override_config.n", None, _validation_samples),
    *parts(f"{ROLLOUT}.val_override_config", {"temperature": None}),
    own(f"{ROLLOUT}.val_override_config.top_p", None, shared.top_p_of_validation),
    own(f"{ROLLOUT}.val_override_config.top_k", None, shared.top_k_of_validation),
    same(f"{ROLLOUT}.val_override_config.max_tokens", "validation.max_tokens", None, int),
    *ignored(ROLLOUT, "seed enable_chunked_prefill max_num_batched_tokens", shared.ENGINE),
    *ignored(ROLLOUT, "disable_log_stats disable_tqdm", shared.REPORTS),
    own("worker.reward.reward_function", None, _reward),
    *parts("worker.reward", {"reward_function_kwargs.*": None}),
    only("worker.reward.skip_special_tokens", (True,), "give true"),
    same("worker.reward.num_cpus", "reward.workers", None, int),
    *ignored("worker.reward", "reward_type", "the function's parameters say it"),
)

THE_RUN: tuple[KeyRow, ...] = (
    own("trainer.total_epochs", 15, _steps),
    *parts("trainer", {"max_steps": None, "max_try_make_batch": 20}),
    same("trainer.project_name", "metrics.project", "easy_r1", shared.project_name),
    own("trainer.experiment_name", "demo", shared.run_name),
    own("trainer.logger", ["console", "wandb"], shared.loggers),
    own("trainer.n_gpus_per_node", 8, _devices),
    own("trainer.nnodes", 1, shared.hosts),
    only(
        "trainer.critic_warmup",
        (0, 1),
        f"{shared.NO_CRITIC}, in whose first steps the policy stands still: give 0",
    ),
    own("trainer.val_freq", -1, _every("validation.every")),
    same("trainer.val_before_train", "validation.before_train", True, is_on),
    switch("trainer.val_only", "validation.only", True),
    own("trainer.val_generations_to_log", 0, shared.logged),
    own("trainer.save_freq", -1, _every("run.checkpoint_every")),
    own("trainer.save_limit", -1, _kept),
    only(
        "trainer.save_model_only",
        (False,),
        "a checkpoint holds the optimizer too; run.checkpoint_models adds the model as a Hugging Face folder",
    ),
    same("trainer.save_checkpoint_path", "run.checkpoints", None, shared.absolute),
    refused(
        "trainer.load_checkpoint_path",
        "their checkpoints are not read: merge one into a Hugging Face folder by their scripts/model_merger.py, and"
        " give it as model_path",
    ),
    *ignored("trainer", "find_last_checkpoint", "`trimaran train --resume RUN` goes on with a run"),
    *ignored("trainer", "ray_timeline", shared.REPORTS),
)

EASYR1 = SourceSystem(
    "easyr1",
    "EasyR1",
    ("worker",),
    (*DATA, *ALGORITHM, *TRAINER, *GENERATION, *THE_RUN),
    # Their loss takes the trainer's own log-probabilities for old, and does not look at the engine's.
    {"algorithm.correction.weights": "none"},
    # Names of before May 2025, which go before the newer ones there.
    {
        "trainer.total_episodes": "trainer.total_epochs",
        f"{ACTOR}.ulysses_sequence_parallel_size": f"{ACTOR}.ulysses_size",
        "worker.reward.compute_score": "worker.reward.reward_function",
    },
)
