"""EasyR1's keys. Their meaning and defaults: verl/trainer/config.py and verl/workers/*/config.py of
hiyouga/EasyR1, July 2026, and its examples/config.yaml since April 2025."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commands.importing.conversion import System
from commands.importing.number_types import (
    GRADIENTS,
    MAIN_WEIGHTS,
    ONE_TYPE,
    computed_in,
    gradients,
    main_weights,
)
from commands.importing.rows import (
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
from commands.importing.rows_file import column_names, has_template, has_words_around
from commands.importing.shared import (
    AHEAD,
    ALL_PROMPTS,
    LANGUAGE_ALONE,
    LENGTHS,
    LOGGED_TEXT,
    MEGATRON,
    MEMORY,
    NO_CRITIC,
    NO_KL,
    NO_WARMUP,
    PADDING,
    ROOM,
    TURNS,
    VALIDATES_ONLY,
    WHOLE,
    Shape,
    data_file,
    every,
    excluded,
    freeze_tower,
    hosts,
    image_key,
    is_validated,
    kept,
    kl_in,
    known_steps,
    limit_images,
    logged,
    loggers,
    longest_sequence,
    lora,
    model_folder,
    paths_of,
    project_name,
    real,
    reward_function,
    run_name,
    samples,
    steps_of,
    top_k_of_validation,
    top_p_of_validation,
    updates_of,
    validates_only,
    warm_up,
    warm_up_share,
    whole,
)

ACTOR = "worker.actor"
ROLLOUT = "worker.rollout"
RULES = {"math": "math", "r1v": "r1v", "dapo": "dapo", "geo3k": "geo3k"}
"""Their published reward functions, by the name of the file -> the same as rules of ours."""

SKIPPED = "a longer prompt is skipped, counted and reported"

PROMPTS = {"math": "think_boxed", "r1v": "r1v", "dapo": "dapo"}
"""Their files of examples/format_prompt -> the same words as a template of `trimaran data prepare`."""


def _steps(theirs: Theirs) -> Outcome:
    older = theirs["trainer.total_episodes"]
    epochs = theirs["trainer.total_epochs"] if older is None else older
    batch, files = theirs["data.rollout_batch_size"], theirs["data.train_files"]
    return steps_of(theirs["trainer.max_steps"], epochs, batch, files, "trainer.max_steps")


def _of_older_name(value: Any, theirs: Theirs) -> Outcome:
    return Outcome("ignored", "not set") if value is None else _steps(theirs)


def _of_epochs(value: Any, theirs: Theirs) -> Outcome:
    if theirs["trainer.total_episodes"] is not None:
        return Outcome("ignored", "trainer.total_episodes goes before it")
    return _steps(theirs)


def _num_steps(theirs: Theirs) -> int | None:
    return known_steps(_steps(theirs))


def _validation(value: Any, theirs: Theirs) -> Outcome:
    if not is_validated(theirs, "trainer.val_freq"):
        return Outcome("ignored", "nothing is validated")
    outcome = data_file("data.validation", "data.val_files")(value, theirs)
    if not outcome.settings:
        return outcome
    return Outcome(
        outcome.fate, outcome.text, {**outcome.settings, "validation.max_prompts": ALL_PROMPTS}
    )


def _prompt_key(value: Any, theirs: Theirs) -> Outcome:
    found = [column_names(file) or [value] for file in paths_of(theirs["data.train_files"])]
    if found and all(value not in names and "prompt" in names for names in found):
        text = f"the rows have no column {value}; they have prompt, and it is taken"
        return Outcome("noted", text, {"data.prompt_key": "prompt"})
    return Outcome("mapped", "", {"data.prompt_key": value})


def _format_prompt(value: Any, theirs: Theirs) -> Outcome:
    if not value:
        return Outcome("ignored", "not set")
    name = PROMPTS.get(Path(str(value)).stem)
    files = paths_of(theirs["data.train_files"])
    if name and files and all(has_template(file, name) for file in files):
        return Outcome("ignored", f"it stands around the questions already: the template {name}")
    wanted = f" --template {name}" if name else ""
    return Outcome(
        "refused",
        "a template of the prompt is applied when the data are prepared: give data.train_files=FILE of"
        f" `trimaran data prepare …{wanted}`, or leave it out with ~data.format_prompt",
    )


def _system_prompt(value: Any, theirs: Theirs) -> Outcome:
    if value is None:
        return Outcome("ignored", "not set")
    settings = {"data.system": value}
    if any(has_words_around(file) for file in paths_of(theirs["data.train_files"])):
        text = (
            "the rows have words around their questions already, and this comes on top, but where a row has a"
            " system message of its own; prepare them with `--template chat`, or leave it out with"
            " ~data.system_prompt"
        )
        return Outcome("noted", text, settings)
    return Outcome("mapped", "", settings)


def _updates(value: Any, theirs: Theirs) -> Outcome:
    return updates_of(
        int(theirs["data.rollout_batch_size"]), int(value), f"{ACTOR}.global_batch_size"
    )


def _micro_batch(value: Any, theirs: Theirs) -> Outcome:
    longest = int(theirs["data.max_prompt_length"]) + int(theirs["data.max_response_length"])
    return Outcome("mapped", "", {"trainer.micro_batch_tokens": int(value) * longest})


def _kl(value: Any, theirs: Theirs) -> Outcome:
    if theirs.is_on("algorithm.disable_kl"):
        return NO_KL
    place = "loss" if theirs.is_on("algorithm.use_kl_loss") else "reward"
    adaptive = None
    if theirs["algorithm.kl_type"] == "adaptive":
        adaptive = {
            "target": float(theirs["algorithm.kl_target"]),
            "horizon": int(theirs["algorithm.kl_horizon"]),
        }
    return kl_in(place, value, theirs["algorithm.kl_penalty"], adaptive)


def _filtering(value: Any, theirs: Theirs) -> Outcome:
    if not is_on(value):
        return Outcome("ignored", "every group trains")
    tries, batch = int(theirs["trainer.max_try_make_batch"]), int(theirs["data.rollout_batch_size"])
    at_once = int(theirs["data.mini_rollout_batch_size"] or batch)
    most = 1000.0 if tries <= 0 else min(1000.0, max(1.0, tries * at_once / batch - 1))
    return Outcome(
        "noted",
        "there a group goes whose mean of filter_key is not between filter_low and filter_high; here one"
        " whose rewards are all equal. With rewards of 0 and 1 these are the same groups. When no more"
        " may be replaced they end, and we train on what there is. algorithm.dynamic_sampling.term"
        " looks at one reward rule alone",
        {"algorithm.dynamic_sampling": {"max_replaced": most}},
    )


def _loss(value: Any, theirs: Theirs) -> Outcome:
    low, high = float(theirs[f"{ACTOR}.clip_ratio_low"]), float(theirs[f"{ACTOR}.clip_ratio_high"])
    dual = float(theirs[f"{ACTOR}.clip_ratio_dual"])
    bounds = {"clip_low": low, "clip_high": high}
    if value == "default":
        loss: dict[str, Any] = {"type": "ppo_clip", **bounds, "dual_clip": dual}
        return Outcome("mapped", "", {"algorithm.loss": loss})
    if value in ("gspo", "gspo_token"):
        text = "clip_ratio_dual is not applied to the ratio of a whole completion here"
        return Outcome("noted", text, {"algorithm.loss": {"type": "gspo", **bounds}})
    if value == "cispo":
        return Outcome("mapped", "", {"algorithm.loss": {"type": "cispo", **bounds}})
    if value == "sapo":
        taus = {name: float(theirs[f"{ACTOR}.{name}"]) for name in ("tau_positive", "tau_negative")}
        return Outcome("mapped", "", {"algorithm.loss": {"type": "sapo", **taus}})
    return Outcome("refused", "losses are default, gspo, gspo_token, cispo and sapo")


def _optimizer(value: Any, theirs: Theirs) -> Outcome:
    if value not in ("adamw", "adamw_bf16"):
        return Outcome("refused", "optimizers are adamw and adamw_bf16")
    return Outcome("mapped", "", {"trainer.optimizer": value})


def _main_weights(value: Any, theirs: Theirs) -> Outcome:
    if theirs[f"{ACTOR}.optim.strategy"] == "adamw_bf16":
        return Outcome("ignored", "trainer.optimizer: adamw_bf16 keeps weights in bfloat16")
    return main_weights(value, theirs)


def _betas(value: Any, theirs: Theirs) -> Outcome:
    beta1, beta2 = map(float, value)
    settings = {"trainer.beta1": beta1, "trainer.beta2": beta2}
    if theirs[f"{ACTOR}.optim.strategy"] == "adamw_bf16" and beta2 > 0.99:
        text = f"{beta2:g} cannot work with moments in bfloat16; 0.99 is taken"
        return Outcome("noted", text, {**settings, "trainer.beta2": 0.99})
    return Outcome("mapped", "", settings)


def _warmup_ratio(value: Any, theirs: Theirs) -> Outcome:
    if theirs[f"{ACTOR}.optim.lr_warmup_steps"] is not None or not float(value):
        return Outcome("ignored", "lr_warmup_steps goes before, or there is no warm-up")
    return warm_up(warm_up_share(float(value), _num_steps(theirs), "trainer.max_steps"))


def _warmup_steps(value: Any, theirs: Theirs) -> Outcome:
    return Outcome("ignored", "not set") if value is None else warm_up(int(value))


def _schedule(value: Any, theirs: Theirs) -> Outcome:
    if value == "constant":
        return Outcome("mapped", "", {"trainer.schedule": value})
    if value == "cosine":
        return Outcome("noted", AHEAD, {"trainer.schedule": value})
    return Outcome("refused", "give constant or cosine")


def _mean(value: Any, theirs: Theirs) -> Outcome:
    if value == "token":
        return Outcome("mapped", "", {"algorithm.aggregation": "token_mean"})
    if value == "seq":
        text = "there the mean of each micro-batch weighs as its tokens do; here every completion counts alike"
        return Outcome("noted", text, {"algorithm.aggregation": "sequence_mean"})
    return Outcome("refused", "give token or seq")


def _overlong(value: Any, theirs: Theirs) -> Outcome:
    if is_on(value):
        return Outcome("ignored", SKIPPED)
    return Outcome("noted", f"{SKIPPED}; there it is cut on the right")


def _least_rate(value: Any, theirs: Theirs) -> Outcome:
    if value is None:
        return Outcome("ignored", "not set")
    rate = float(value) * float(theirs[f"{ACTOR}.optim.lr"])
    return Outcome("mapped", "", {"trainer.min_learning_rate": rate})


def _devices(value: Any, theirs: Theirs) -> Outcome:
    shape = Shape(
        devices=int(value) * int(theirs["trainer.nnodes"]),
        rollout_tensor=int(theirs[f"{ROLLOUT}.tensor_parallel_size"]),
        context=_ulysses(theirs),
    )
    split = shape.split(theirs.in_turns)
    settings = split.settings()
    shared = split.data * shape.context > 1
    if shared and theirs[f"{ACTOR}.optim.strategy"] == "adamw":
        settings["trainer.distributed_optimizer"] = True
    return Outcome("noted", split.text(), settings)


def _ulysses(theirs: Theirs) -> int:
    older = theirs.given.get(f"{ACTOR}.ulysses_sequence_parallel_size")
    return int(older or theirs[f"{ACTOR}.ulysses_size"])


def _reward(value: Any, theirs: Theirs) -> Outcome:
    if value is None:
        older = theirs["worker.reward.compute_score"]
        if older in RULES:
            return Outcome("mapped", "", {"reward.rules": {RULES[older]: 1.0}})
        return Outcome("refused", "give worker.reward.reward_function=FILE:NAME")
    path, _, name = str(value).partition(":")
    options = theirs.under("worker.reward.reward_function_kwargs")
    stem = Path(path).stem
    if stem in RULES and Path(path).parent.name == "reward_function":
        return _published(stem, options)
    return reward_function(path, name or "main", options)


def _published(name: str, options: dict[str, Any]) -> Outcome:
    """Their own function, which is a rule here."""
    names = {"max_response_length": "max_tokens", "overlong_buffer_length": "buffer"}
    names["overlong_penalty_factor"] = "factor"
    ours = {names.get(key, key): value for key, value in options.items()}
    rule: Any = {"weight": 1.0, "options": ours} if ours else 1.0
    text = f"their {name}.py is the rule {RULES[name]} here; docs/reward-rules.md has it by example"
    return Outcome("noted", text, {"reward.rules": {RULES[name]: rule}})


def _reference_offload(value: Any, theirs: Theirs) -> Outcome:
    kept = _kl(theirs["algorithm.kl_coef"], theirs).settings.get("algorithm.kl.coefficient", 0)
    has_lora = int(theirs[f"{ACTOR}.model.lora.rank"] or 0) > 0
    if not is_on(value) or not kept or has_lora:
        return Outcome("ignored", "the reference stays on the device, or there is none")
    return Outcome("mapped", "", {"algorithm.kl.offload": True})


def _validate_every(value: Any, theirs: Theirs) -> Outcome:
    return every(value, "validation.every", _num_steps(theirs))


def _validation_samples(value: Any, theirs: Theirs) -> Outcome:
    number = theirs[f"{ROLLOUT}.n"] if value is None else value
    return samples(number, theirs[f"{ROLLOUT}.val_override_config.temperature"], is_greedy=False)


def _kept(value: Any, theirs: Theirs) -> Outcome:
    return kept(value, _num_steps(theirs), theirs["trainer.save_freq"])


ROWS: tuple[Row, ...] = (
    own(
        "data.train_files",
        "data.train",
        None,
        "a file; a data set of the hub (`name@split`) is"
        " refused: `trimaran data prepare` brings it here",
        data_file("data.train", "data.train_files"),
    ),
    own(
        "data.val_files",
        "data.validation, validation.max_prompts",
        None,
        "the same; all of its prompts",
        _validation,
    ),
    own(
        "data.prompt_key",
        "data.prompt_key",
        "prompt",
        "where the rows have no such column, and have `prompt`, as `trimaran data prepare` writes it: `prompt`",
        _prompt_key,
    ),
    same("data.answer_key", "data.answer_key", "answer"),
    own("data.image_key", "data.image_key", "images", "where the rows have the column", image_key),
    ignored("data.video_key", "no model here takes videos; the column is a text", "videos"),
    only("data.image_dir", None, (None,), "not set", "write whole paths into the rows"),
    ignored("data.video_fps", "no model here takes videos", 2.0),
    same("data.max_prompt_length", "rollout.max_prompt_tokens", 512, to=whole),
    same("data.max_response_length", "rollout.max_tokens", 512, to=whole),
    same(
        "data.rollout_batch_size",
        "run.groups_per_step",
        512,
        "prompts of a step; each is answered rollout.n times",
        whole,
    ),
    part(
        "data.mini_rollout_batch_size",
        "algorithm.online_filtering",
        None,
        "prompts are issued one by one, so it says only how many may be replaced",
    ),
    ignored(
        "data.val_batch_size",
        "prompts of a validation are under way as the engines have room, and as their images take memory",
        -1,
    ),
    own(
        "data.format_prompt",
        "",
        None,
        "math.jinja → the template think_boxed, r1v.jinja → r1v, dapo.jinja → dapo. It is put around the"
        " question when the data are prepared (`trimaran data prepare`): a file whose card names it is taken,"
        " and any other is refused",
        _format_prompt,
    ),
    only(
        "data.override_chat_template",
        None,
        (None,),
        "not set",
        "write it into the chat_template of the model's folder",
    ),
    own(
        "data.system_prompt",
        "data.system",
        None,
        "of EasyR1 before May 2025. Rows that `trimaran data prepare` put words around have these besides",
        _system_prompt,
    ),
    same("data.shuffle", "data.shuffle", True),
    same("data.seed", "run.seed", 1, to=whole),
    same("data.min_pixels", "data.min_pixels", 262144, to=whole),
    same("data.max_pixels", "data.max_pixels", 4194304, to=whole),
    own(
        "data.filter_overlong_prompts",
        "",
        True,
        f"{SKIPPED}; with false it is cut there, which is noted",
        _overlong,
    ),
    ignored("data.filter_overlong_prompts_workers", "prompts are counted as they are issued", 16),
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
        "gae needs a critic, and there is none here; take one of these",
    ),
    only(
        "algorithm.gamma",
        1.0,
        (1, 1.0),
        "there is no discount here",
        "there is no discount here; give 1",
    ),
    ignored("algorithm.lam", "of gae alone", 1.0),
    part("algorithm.disable_kl", "algorithm.kl_coef", False),
    part("algorithm.use_kl_loss", "algorithm.kl_coef", False),
    part("algorithm.kl_penalty", "algorithm.kl_coef", "kl"),
    own(
        "algorithm.kl_coef",
        "algorithm.kl",
        1e-3,
        "`disable_kl`: 0; `use_kl_loss` says whether it stands"
        " in the loss or is taken off the reward; kl → k1, abs → abs, mse → k2, low_var_kl → k3. The"
        " limit of 10 nats holds for each of them here",
        _kl,
    ),
    part("algorithm.kl_type", "algorithm.kl_coef", "fixed"),
    part("algorithm.kl_horizon", "algorithm.kl_coef", 10000.0),
    part("algorithm.kl_target", "algorithm.kl_coef", 0.1),
    own(
        "algorithm.online_filtering",
        "algorithm.dynamic_sampling",
        False,
        "groups whose rewards are all equal are replaced, at most max_try_make_batch x"
        " mini_rollout_batch_size prompts in a step",
        _filtering,
    ),
    part("algorithm.filter_key", "algorithm.online_filtering", "overall"),
    part("algorithm.filter_low", "algorithm.online_filtering", 0.01),
    part("algorithm.filter_high", "algorithm.online_filtering", 0.99),
    ignored("worker.hybrid_engine", TURNS, True),
    ignored(f"{ACTOR}.strategy", MEGATRON, "fsdp"),
    own(
        f"{ACTOR}.global_batch_size",
        "algorithm.updates_per_batch",
        256,
        "data.rollout_batch_size / this: both count prompts, not sequences",
        _updates,
    ),
    own(
        f"{ACTOR}.micro_batch_size_per_device_for_update",
        "trainer.micro_batch_tokens",
        4,
        "sequences x (max_prompt_length + max_response_length): a bound in tokens holds at least as many"
        " sequences",
        _micro_batch,
    ),
    ignored(
        f"{ACTOR}.micro_batch_size_per_device_for_experience",
        "passes for log-probabilities have micro-batches of the same size",
        16,
    ),
    same(f"{ACTOR}.max_grad_norm", "trainer.clip_grad", 1.0, to=real),
    own(
        f"{ACTOR}.loss_type",
        "algorithm.loss",
        "default",
        "default → ppo_clip, gspo and gspo_token → gspo, cispo, sapo, each with its bounds",
        _loss,
    ),
    part(f"{ACTOR}.clip_ratio_low", f"{ACTOR}.loss_type", 0.2),
    part(f"{ACTOR}.clip_ratio_high", f"{ACTOR}.loss_type", 0.3),
    part(f"{ACTOR}.clip_ratio_dual", f"{ACTOR}.loss_type", 3.0),
    part(f"{ACTOR}.tau_positive", f"{ACTOR}.loss_type", 1.0),
    part(f"{ACTOR}.tau_negative", f"{ACTOR}.loss_type", 1.05),
    own(
        f"{ACTOR}.loss_avg_mode",
        "algorithm.aggregation",
        "token",
        "token → token_mean, seq → sequence_mean. Another one is refused",
        _mean,
    ),
    same(f"{ACTOR}.ppo_epochs", "algorithm.epochs", 1, to=whole),
    ignored(f"{ACTOR}.padding_free", PADDING, True),
    ignored(f"{ACTOR}.dynamic_batching", "trainer.micro_batch_tokens bounds tokens, always", True),
    same(f"{ACTOR}.ulysses_size", "trainer.context_parallel", 1, to=whole),
    same(
        f"{ACTOR}.ulysses_sequence_parallel_size",
        "trainer.context_parallel",
        None,
        "its older name",
        whole,
    ),
    ignored(f"{ACTOR}.use_torch_compile", "nothing is compiled", True),
    own(f"{ACTOR}.model.model_path", "model.path", None, "a folder", model_folder),
    only(
        f"{ACTOR}.model.tokenizer_path",
        None,
        (None,),
        "not set",
        "the tokenizer is that of the model's folder; copy it there",
    ),
    refused(f"{ACTOR}.model.override_config.*", "write it into the model's config.json"),
    same(f"{ACTOR}.model.enable_gradient_checkpointing", "trainer.recompute", True),
    ignored(f"{ACTOR}.model.trust_remote_code", "code of a model's folder is never run", True),
    own(
        f"{ACTOR}.model.freeze_vision_tower",
        "trainer.freeze",
        False,
        "true → `*visual.*`",
        freeze_tower,
    ),
    own(
        f"{ACTOR}.model.lora.rank",
        "trainer.lora",
        0,
        "0: none",
        lambda value, theirs: lora(
            value, theirs[f"{ACTOR}.model.lora.alpha"], theirs[f"{ACTOR}.model.lora.target_modules"]
        ),
    ),
    part(f"{ACTOR}.model.lora.alpha", f"{ACTOR}.model.lora.rank", 64),
    part(f"{ACTOR}.model.lora.target_modules", f"{ACTOR}.model.lora.rank", "all-linear"),
    own(
        f"{ACTOR}.model.lora.exclude_modules",
        "",
        None,
        f"{LANGUAGE_ALONE}. Other names are refused",
        excluded(lambda theirs: int(theirs[f"{ACTOR}.model.lora.rank"] or 0) > 0),
    ),
    same(f"{ACTOR}.optim.lr", "trainer.learning_rate", 1e-6, to=real),
    own(
        f"{ACTOR}.optim.betas",
        "trainer.beta1, trainer.beta2",
        [0.9, 0.999],
        "with adamw_bf16 at most 0.99",
        _betas,
    ),
    same(
        f"{ACTOR}.optim.weight_decay",
        "trainer.weight_decay",
        1e-2,
        "norms and biases do not decay here",
        real,
    ),
    own(f"{ACTOR}.optim.strategy", "trainer.optimizer", "adamw", "adamw, adamw_bf16", _optimizer),
    own(
        f"{ACTOR}.optim.lr_warmup_ratio", "trainer.warmup_steps", 0.0, "of run.steps", _warmup_ratio
    ),
    own(f"{ACTOR}.optim.lr_warmup_steps", "trainer.warmup_steps", None, AHEAD, _warmup_steps),
    own(f"{ACTOR}.optim.min_lr_ratio", "trainer.min_learning_rate", None, "x lr", _least_rate),
    own(
        f"{ACTOR}.optim.lr_scheduler_type",
        "trainer.schedule",
        "constant",
        f"constant and cosine, which is noted: {AHEAD}. Another one is refused",
        _schedule,
    ),
    ignored(f"{ACTOR}.optim.training_steps", "their program sets it", -1),
    *each(
        f"{ACTOR}.fsdp",
        "enable_full_shard enable_cpu_offload enable_rank0_init use_orig_params fsdp_size mp_buffer_dtype",
        "parameters are split by trainer.tensor_parallel and pipeline_parallel, the optimizer by"
        " distributed_optimizer; numbers are those of model.dtype and trainer.optimizer",
    ),
    own(
        f"{ACTOR}.fsdp.torch_dtype",
        "",
        None,
        f"{MAIN_WEIGHTS}, but with optim.strategy=adamw_bf16",
        _main_weights,
    ),
    own(
        f"{ACTOR}.fsdp.mp_param_dtype",
        "",
        "bf16",
        f"{ONE_TYPE}; another one is refused",
        computed_in(f"{ROLLOUT}.dtype"),
    ),
    own(f"{ACTOR}.fsdp.mp_reduce_dtype", "", "fp32", GRADIENTS, gradients),
    ignored(f"{ACTOR}.offload.offload_params", TURNS, False),
    switch(f"{ACTOR}.offload.offload_optimizer", False, "trainer.offload", ["optimizer"], ROOM),
    only(f"{ROLLOUT}.name", "vllm", ("vllm",), "the engine is vLLM", "give vllm"),
    same(f"{ROLLOUT}.n", "rollout.group_size", 1, to=whole),
    same(f"{ROLLOUT}.temperature", "rollout.temperature", 1.0, to=real),
    only(f"{ROLLOUT}.top_p", 1.0, (1, 1.0), WHOLE, f"{WHOLE}; give 1"),
    only(f"{ROLLOUT}.top_k", -1, (-1, 0), "the same", "give -1"),
    ignored(f"{ROLLOUT}.seed", "each completion's seed follows from run.seed", 1),
    own(f"{ROLLOUT}.limit_images", "rollout.limit_images", 0, "0: the default, 4", limit_images),
    choice(
        f"{ROLLOUT}.dtype",
        "model.dtype",
        "bf16",
        {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"},
        "give bf16 or fp32",
    ),
    noted(f"{ROLLOUT}.gpu_memory_utilization", "rollout.memory_fraction", 0.6, MEMORY, real),
    only(f"{ROLLOUT}.ignore_eos", False, (False,), "an answer ends at its end", "give false"),
    same(f"{ROLLOUT}.enforce_eager", "rollout.eager", False),
    ignored(f"{ROLLOUT}.enable_chunked_prefill", "vLLM's version 1 always does it", False),
    same(f"{ROLLOUT}.tensor_parallel_size", "rollout.tensor_parallel", 2, to=whole),
    own(
        f"{ROLLOUT}.max_model_len",
        "",
        None,
        LENGTHS,
        longest_sequence("data.max_prompt_length", "data.max_response_length"),
    ),
    ignored(
        f"{ROLLOUT}.max_num_batched_tokens",
        "vLLM's own default; rollout.max_concurrency bounds completions",
        8192,
    ),
    ignored(f"{ROLLOUT}.disable_log_stats", "docs/observability.md has what engines report", True),
    ignored(f"{ROLLOUT}.disable_tqdm", "the terminal shows one row a step", False),
    own(
        f"{ROLLOUT}.val_override_config.n",
        "validation.samples, validation.final_samples, validation.temperature",
        None,
        "rollout.n without it; 0 at temperature 0, as one such answer is made anyway",
        _validation_samples,
    ),
    part(f"{ROLLOUT}.val_override_config.temperature", f"{ROLLOUT}.val_override_config.n"),
    own(
        f"{ROLLOUT}.val_override_config.top_p",
        "validation.top_p",
        None,
        "of the samples",
        top_p_of_validation,
    ),
    same(
        f"{ROLLOUT}.val_override_config.max_tokens",
        "validation.max_tokens",
        None,
        "of every answer to a held-out prompt",
        whole,
    ),
    own(
        f"{ROLLOUT}.val_override_config.top_k",
        "",
        None,
        "samples are drawn from all tokens",
        top_k_of_validation,
    ),
    ignored("worker.ref.strategy", MEGATRON, "fsdp"),
    own(
        "worker.ref.fsdp.enable_cpu_offload",
        "algorithm.kl.offload",
        False,
        "where there is a KL term and no adapters",
        _reference_offload,
    ),
    *each(
        "worker.ref.fsdp",
        "enable_full_shard enable_rank0_init use_orig_params torch_dtype fsdp_size mp_param_dtype"
        " mp_reduce_dtype mp_buffer_dtype",
        "it is split as the trainer's model",
    ),
    ignored("worker.ref.offload.offload_params", "fsdp.enable_cpu_offload says the same", False),
    ignored("worker.ref.offload.offload_optimizer", "the reference has none", False),
    own(
        "worker.reward.reward_function",
        "reward.rules",
        None,
        "their math.py, r1v.py and dapo.py are"
        " rules here; any other file:function is called as it stands, once `--allow` names it",
        _reward,
    ),
    part("worker.reward.reward_function_kwargs.*", "worker.reward.reward_function"),
    ignored("worker.reward.reward_type", "the function's parameters tell", None),
    part(
        "worker.reward.compute_score",
        "worker.reward.reward_function",
        None,
        "of EasyR1 before May 2025: math and r1v are rules here",
    ),
    only("worker.reward.skip_special_tokens", True, (True,), "so here", "give true"),
    same("worker.reward.num_cpus", "reward.workers", None, to=whole),
    ignored("worker.critic.*", NO_CRITIC),
    own(
        "trainer.total_epochs",
        "run.steps, run.epochs",
        15,
        "x (rows // data.rollout_batch_size)",
        _of_epochs,
    ),
    own(
        "trainer.total_episodes",
        "run.steps",
        None,
        "the older name of total_epochs, before which it goes",
        _of_older_name,
    ),
    part("trainer.max_steps", "trainer.total_epochs", None, "run.steps; goes before total_epochs"),
    same(
        "trainer.project_name", "metrics.project", "easy_r1", "other characters: `-`", project_name
    ),
    own(
        "trainer.experiment_name", "run.name", "demo", "letters, digits, `.`, `-` and `_`", run_name
    ),
    own(
        "trainer.logger",
        "metrics.sinks",
        ["console", "wandb"],
        "wandb, or a sink of an installed package; console, file and tensorboard always",
        loggers,
    ),
    own(
        "trainer.n_gpus_per_node",
        "trainer.data_parallel, rollout.replicas",
        8,
        "x nnodes devices, which train and generate in turns there; here half of them trains and half"
        " generates, or with `run.pools=colocated` behind the file all do both in turns",
        _devices,
    ),
    own(
        "trainer.nnodes",
        "",
        1,
        "above 1: network.subnet, and a launcher for several hosts (docs/deploy.md)",
        hosts,
    ),
    part("trainer.max_try_make_batch", "algorithm.online_filtering", 20),
    only("trainer.critic_warmup", 0, (0, 1), NO_CRITIC, NO_WARMUP),
    own("trainer.val_freq", "validation.every", -1, "-1: at the end alone", _validate_every),
    same("trainer.val_before_train", "validation.before_train", True, to=is_on),
    own("trainer.val_only", "validation.only", False, VALIDATES_ONLY, validates_only),
    own("trainer.val_generations_to_log", "validation.logged", 0, LOGGED_TEXT, logged),
    own(
        "trainer.save_freq",
        "run.checkpoint_every",
        -1,
        "-1: at the end alone",
        lambda value, theirs: every(value, "run.checkpoint_every", _num_steps(theirs)),
    ),
    own("trainer.save_limit", "run.keep_checkpoints", -1, "-1: all", _kept),
    only(
        "trainer.save_model_only",
        False,
        (False,),
        "a checkpoint holds the optimizer too",
        "a checkpoint"
        " holds the optimizer too; run.checkpoint_models adds the model as a Hugging Face folder",
    ),
    same(
        "trainer.save_checkpoint_path",
        "run.checkpoints",
        None,
        to=lambda v: str(Path(v).absolute()),
    ),
    only(
        "trainer.load_checkpoint_path",
        None,
        (None,),
        "not set",
        "their checkpoints are not read: merge"
        " one into a Hugging Face folder by their scripts/model_merger.py, and give it as model_path",
    ),
    ignored(
        "trainer.find_last_checkpoint", "`trimaran train --resume RUN` goes on with a run", True
    ),
    ignored("trainer.ray_timeline", "timeline.jsonl and timeline.png show it"),
)

EASYR1 = System(
    "easyr1",
    "EasyR1",
    ("worker",),
    ROWS,
    # Their loss takes the trainer's own log-probabilities for old, and does not look at the engine's.
    {"algorithm.correction.weights": "none"},
)
