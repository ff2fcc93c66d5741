"""Conversions of verl's keys that look at more than one of them; the table is commands/importing/verl.py."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from commands.importing import shared
from commands.importing.processor_file import QWEN25_VL, pixel_bounds
from commands.importing.rows import Convert, KeyOutcome, Theirs, is_on
from commands.importing.rows_file import column_names, distinct

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
MCORE = f"{ACTOR}.megatron"
TRANSFORMER = f"{MCORE}.override_transformer_config"
FUNCTION = "reward.custom_reward_function"

SOURCES = {
    "openai/gsm8k": "gsm8k",
    "lighteval/MATH": "boxed_equal",
    "DigitalLearningGmbH/MATH-lighteval": "boxed_equal",
    "HuggingFaceH4/MATH-500": "boxed_equal",
    "math_dapo": "acc_for_dapo",
    "math": "acc_for_dapo",
    "math_dapo_reasoning": "acc_for_dapo",
    "hiyouga/geometry3k": "geo3k",
}
"""Values of the column data_source -> the rule that does what verl's default_compute_score does for it."""
FOLDERS = {
    "gsm8k": "gsm8k",
    "math": "boxed_equal",
    "geo3k": "geo3k",
    "dapo-math-17k": "acc_for_dapo",
}
"""The same by the folder or file into which verl's preparation writes."""


def _is_megatron(theirs: Theirs) -> bool:
    return theirs[f"{ACTOR}.strategy"] == "megatron" or any(
        not key.startswith("router_replay.") for key in theirs.under(MCORE)
    )


def drawn(theirs: Theirs) -> int:
    """Prompts that their loader gives at once: so many rows of an epoch."""
    number = theirs["data.gen_batch_size"]
    return int(theirs["data.train_batch_size"] if number is None else number)


def prompts(theirs: Theirs) -> int:
    """The groups of a step. With filter_groups they draw until train_batch_size of them are left."""
    if theirs.is_on("algorithm.filter_groups.enable"):
        return int(theirs["data.train_batch_size"])
    return drawn(theirs)


def batch(value: Any, theirs: Theirs) -> KeyOutcome:
    return KeyOutcome("mapped", "", {"run.groups_per_step": prompts(theirs)})


def steps(value: Any, theirs: Theirs) -> KeyOutcome:
    """Whichever of total_training_steps and total_epochs is over first."""
    total, epochs = theirs["trainer.total_training_steps"], value
    more = (epochs, drawn(theirs), theirs["data.train_files"], "trainer.total_training_steps")
    of_epochs = shared.known_steps(shared.steps_of(None, *more))
    if total is None or of_epochs is None or int(total) <= of_epochs:
        outcome = shared.steps_of(total, *more)
        if "run.epochs" in outcome.settings and drawn(theirs) != prompts(theirs):
            return KeyOutcome(
                "refused",
                "an epoch is counted by data.gen_batch_size, a step by data.train_batch_size, and the rows of the"
                " training file cannot be counted here: bring it, or give trainer.total_training_steps=N",
            )
        return outcome
    text = f"its {epochs} epochs end before trainer.total_training_steps={total}, as there, but for a rate that falls"
    return KeyOutcome("noted", text, {"run.steps": of_epochs})


def most_rows(value: Any, theirs: Theirs) -> KeyOutcome:
    """The rows of the training file, on which theirs goes through an epoch."""
    files = shared.paths_of(theirs["data.train_files"])
    most, found = int(-1 if value is None else value), shared.rows_of(files)
    if most < 1 or (found is not None and found <= most):
        return KeyOutcome("ignored", "all rows train")
    return KeyOutcome(
        "refused",
        f"all rows of a file train here: give data.train_files a file of {most} rows (`trimaran data prepare"
        f" … --limit {most}` reads the first ones), and -1",
    )


def source_column(value: Any, theirs: Theirs) -> KeyOutcome:
    if value == "data_source" or not theirs[f"{FUNCTION}.path"]:
        return KeyOutcome("ignored", "it is read where the reward is chosen")
    text = f"functions get the column data_source: call {value} so in the file, and leave it out"
    return KeyOutcome("refused", text)


def as_in_data(key: str) -> Convert:
    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        if value is None or int(value) == int(theirs[key]):
            return KeyOutcome("ignored", f"it is {key}")
        return KeyOutcome(
            "refused", f"one length counts here: give {key}={value}, and leave it out"
        )

    return convert


def num_steps(theirs: Theirs) -> int | None:
    return shared.known_steps(steps(theirs["trainer.total_epochs"], theirs))


def validation(value: Any, theirs: Theirs) -> KeyOutcome:
    if not shared.is_validated(theirs, "trainer.test_freq"):
        return KeyOutcome("ignored", "nothing is validated")
    return shared.data_file("data.validation", "data.val_files")(value, theirs)


def images(value: Any, theirs: Theirs) -> KeyOutcome:
    """verl leaves the size of images to the model's own processor."""
    outcome = shared.image_key(value, theirs)
    if not outcome.settings:
        return outcome
    bounds = pixel_bounds(str(theirs[f"{MODEL}.path"]))
    least, most = bounds or QWEN25_VL
    settings = {**outcome.settings, "data.min_pixels": least, "data.max_pixels": most}
    if bounds:
        return KeyOutcome(outcome.fate, outcome.text, settings)
    unknown = "the model's preprocessor_config.json is not here: pixels are bounded as Qwen2.5-VL's"
    return KeyOutcome("noted", "; ".join(filter(None, (outcome.text, unknown))), settings)


def most_validated(value: Any, theirs: Theirs) -> KeyOutcome:
    most = int(value) if value is not None and int(value) > 0 else shared.ALL_PROMPTS
    settings = {"validation.max_prompts": most}
    rows = shared.rows_of(shared.paths_of(theirs["data.val_files"]))
    if most == shared.ALL_PROMPTS or not theirs.is_on("data.shuffle") or (rows or most + 1) <= most:
        return KeyOutcome("mapped", "", settings)
    return KeyOutcome(
        "noted", "the first ones; there they are drawn, as data.shuffle is on", settings
    )


def truncation(value: Any, theirs: Theirs) -> KeyOutcome:
    text = "a longer prompt is skipped, not cut"
    if value in ("error", None) or theirs.is_on("data.filter_overlong_prompts"):
        return KeyOutcome("ignored", text)
    return KeyOutcome("refused", f"{text}; give error")


def advantage(value: Any, theirs: Theirs) -> KeyOutcome:
    by_std = theirs.is_on("algorithm.norm_adv_by_std_in_grpo")
    grpo = {"type": "group", "normalize_std": by_std}
    ours: dict[str, Any] = {
        "grpo": grpo,
        "grpo_vectorized": grpo,
        "grpo_passk": {"type": "best_of_group", "normalize_std": by_std},
        "gdpo": "gdpo",
        "rloo": "rloo",
        "rloo_vectorized": "rloo",
        "opo": "opo",
        "remax": "remax",
        "reinforce_plus_plus": "reinforce_pp",
        "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
    }
    if value == "gae":
        return KeyOutcome("refused", "gae needs a critic, and there is none here: give grpo")
    if value not in ours:
        return KeyOutcome("refused", f"advantages are {', '.join(ours)} (given: {value})")
    return KeyOutcome("mapped", "", {"algorithm.advantage": ours[value]})


def updates(value: Any, theirs: Theirs) -> KeyOutcome:
    return shared.updates_of(prompts(theirs), int(value), f"{ACTOR}.ppo_mini_batch_size")


def micro_batch(value: Any, theirs: Theirs) -> KeyOutcome:
    """The token limit of the ranks that share a sequence, together."""
    if is_on(value):
        tokens = int(theirs[f"{ACTOR}.ppo_max_token_len_per_gpu"]) * _context(theirs)
    else:
        sequences = theirs[f"{ACTOR}.ppo_micro_batch_size_per_gpu"]
        longest = int(theirs["data.max_prompt_length"]) + int(theirs["data.max_response_length"])
        if sequences is None:
            text = "there ppo_micro_batch_size_per_gpu has to say it; one sequence, which changes memory and pace alone"
            return KeyOutcome("noted", text, {"trainer.micro_batch_tokens": longest})
        tokens = int(sequences) * longest
    return KeyOutcome("mapped", "", {"trainer.micro_batch_tokens": tokens})


def _context(theirs: Theirs) -> int:
    key = (
        f"{MCORE}.context_parallel_size"
        if _is_megatron(theirs)
        else f"{ACTOR}.ulysses_sequence_parallel_size"
    )
    return int(theirs[key] or 1)


def kl(value: Any, theirs: Theirs) -> KeyOutcome:
    in_loss, in_reward = is_on(value), theirs.is_on("algorithm.use_kl_in_reward")
    if in_loss and in_reward:
        return KeyOutcome(
            "refused", "the KL term has one place here: give algorithm.use_kl_in_reward=False"
        )
    if in_loss:
        return shared.kl_in(
            "loss", theirs[f"{ACTOR}.kl_loss_coef"], theirs[f"{ACTOR}.kl_loss_type"]
        )
    if not in_reward:
        return shared.NO_KL
    adaptive = None
    if theirs["algorithm.kl_ctrl.type"] == "adaptive":
        target, horizon = theirs["algorithm.kl_ctrl.target_kl"], theirs["algorithm.kl_ctrl.horizon"]
        adaptive = {"target": float(target), "horizon": int(horizon)}
    return shared.kl_in(
        "reward", theirs["algorithm.kl_ctrl.kl_coef"], theirs["algorithm.kl_penalty"], adaptive
    )


def loss(value: Any, theirs: Theirs) -> KeyOutcome:
    both = float(theirs[f"{ACTOR}.clip_ratio"])
    low, high = (theirs[f"{ACTOR}.clip_ratio_{end}"] for end in ("low", "high"))
    bounds = {
        "clip_low": both if low is None else float(low),
        "clip_high": both if high is None else float(high),
    }
    covariance = f"{ACTOR}.policy_loss"
    ours: dict[str, dict[str, Any]] = {
        "vanilla": {
            "type": "ppo_clip",
            **bounds,
            "dual_clip": float(theirs[f"{ACTOR}.clip_ratio_c"]),
        },
        "gspo": {"type": "gspo", **bounds},
        "cispo": {"type": "cispo", **bounds},
        "geo_mean": {"type": "geometric_mean", **bounds},
        "sapo": {
            "type": "sapo",
            "tau_positive": float(theirs[f"{ACTOR}.tau_pos"]),
            "tau_negative": float(theirs[f"{ACTOR}.tau_neg"]),
        },
        "clip_cov": {
            "type": "clip_cov",
            **bounds,
            "share": float(theirs[f"{covariance}.clip_cov_ratio"]),
            "lower": float(theirs[f"{covariance}.clip_cov_lb"]),
            "upper": float(theirs[f"{covariance}.clip_cov_ub"]),
        },
        "kl_cov": {
            "type": "kl_cov",
            "share": float(theirs[f"{covariance}.kl_cov_ratio"]),
            "coefficient": float(theirs[f"{covariance}.ppo_kl_coef"]),
        },
    }
    if value not in ours:
        return KeyOutcome("refused", f"losses are {', '.join(ours)} (given: {value})")
    return KeyOutcome("mapped", "", {"algorithm.loss": ours[value]})


def aggregation(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs[f"{ACTOR}.policy_loss.loss_mode"] in ("gspo", "sapo", "geo_mean"):
        by_sequence = {"algorithm.aggregation": "sequence_mean"}
        if value == "seq-mean-token-mean" or not _has_other_terms(theirs):
            return KeyOutcome("mapped", "", by_sequence)
        text = f"there the KL term and the entropy keep {value}, beside such a loss; here all have one mean"
        return KeyOutcome("noted", text, by_sequence)
    longest = theirs[f"{ACTOR}.loss_scale_factor"] or theirs["data.max_response_length"]
    ours: dict[str, Any] = {
        "token-mean": "token_mean",
        "seq-mean-token-sum": "sequence_sum",
        "seq-mean-token-mean": "sequence_mean",
        "seq-mean-token-sum-norm": {"type": "fixed", "tokens": int(longest)},
    }
    if value not in ours:
        return KeyOutcome("refused", f"aggregations are {', '.join(ours)} (given: {value})")
    settings = {"algorithm.aggregation": ours[value]}
    if value == "seq-mean-token-sum-norm":
        text = (
            "as verl since February 2026; before, it did not divide by the number of completions too, so scale the"
            " learning rate of an older run"
        )
        return KeyOutcome("noted", text, settings)
    return KeyOutcome("mapped", "", settings)


def _has_other_terms(theirs: Theirs) -> bool:
    """In the loss, beside the policy's own."""
    has_entropy = float(theirs[f"{ACTOR}.entropy_coeff"] or 0) != 0
    return has_entropy or theirs.is_on(f"{ACTOR}.use_kl_loss")


def correction(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs.is_on("algorithm.rollout_correction.bypass_mode"):
        return KeyOutcome("mapped", "", {"algorithm.correction.old": "rollout"})
    if value is None:
        return KeyOutcome("ignored", "none")
    if value not in ("token", "sequence"):
        return KeyOutcome("refused", "give token, sequence or null")
    return KeyOutcome("mapped", "", {"algorithm.correction.weights": value})


def correction_bounds(value: Any, theirs: Theirs) -> KeyOutcome:
    """A number truncates weights; of "low_high" those outside become 0 (rollout_corr_helper.py)."""
    weights = correction(theirs["algorithm.rollout_correction.rollout_is"], theirs).settings.get(
        "algorithm.correction.weights"
    )
    if weights is None:
        return KeyOutcome("ignored", "no weights")
    low, _, high = str(value).rpartition("_")
    if not low:
        return KeyOutcome("mapped", "", {"algorithm.correction.cap": float(value)})
    if weights == "sequence":
        return KeyOutcome(
            "refused",
            "two bounds are of a token's weight here; give one number, which truncates the weight of a"
            " sequence, or set algorithm.correction.geometric_bounds in the run",
        )
    bounds = {"algorithm.correction.token_bounds": [float(low), float(high)]}
    return KeyOutcome("mapped", "", {"algorithm.correction.cap": None, **bounds})


def filtering(value: Any, theirs: Theirs) -> KeyOutcome:
    if not is_on(value):
        return KeyOutcome("ignored", "every group trains")
    return shared.dynamic_sampling(
        tries=int(theirs["algorithm.filter_groups.max_num_gen_batches"] or 0),
        share=drawn(theirs) / int(theirs["data.train_batch_size"]),
        text=f"there {theirs['algorithm.filter_groups.metric']} of a group must differ, here its rewards;"
        " algorithm.dynamic_sampling.term looks at one reward rule alone. When no more may be replaced they end,"
        " and we train on what there is",
    )


def _expert_slices(theirs: Theirs) -> int:
    """Where nothing else is said megatron-core splits experts as it splits the rest."""
    given = theirs[f"{MCORE}.expert_tensor_parallel_size"]
    if given is None and int(theirs[f"{MCORE}.expert_model_parallel_size"] or 1) > 1:
        given = theirs[f"{MCORE}.tensor_model_parallel_size"]
    return int(given or 1)


def layout(value: Any, theirs: Theirs) -> KeyOutcome:
    has_layout = _is_megatron(theirs)

    def size(name: str) -> int:
        return int(theirs[f"{MCORE}.{name}"] or 1) if has_layout else 1

    shape = shared.Shape(
        devices=int(value) * int(theirs["trainer.nnodes"]),
        rollout_tensor=int(theirs[f"{ROLLOUT}.tensor_model_parallel_size"]),
        tensor=size("tensor_model_parallel_size"),
        pipeline=size("pipeline_model_parallel_size"),
        context=_context(theirs),
        expert=size("expert_model_parallel_size"),
        expert_tensor=_expert_slices(theirs) if has_layout else 1,
    )
    more: dict[str, Any] = {}
    if shape.expert_tensor > 1:
        more["expert_tensor_parallel"] = shape.expert_tensor
    if shape.tensor > 1 and theirs.is_on(f"{MCORE}.sequence_parallel"):
        more["sequence_parallel"] = True
    return shape.outcome(theirs.in_turns, **more)


def replay(value: Any, theirs: Theirs) -> KeyOutcome:
    """Whose choice of experts counts in the trainer."""
    if value == "disabled":
        return KeyOutcome("ignored", "off")
    if value != "R3":
        return KeyOutcome(
            "refused", "experts are the engine's choice (R3) or the trainer's (disabled)"
        )
    if not theirs.is_on(f"{ROLLOUT}.enable_rollout_routing_replay"):
        text = f"R3 takes the engine's choice: give {ROLLOUT}.enable_rollout_routing_replay=True"
        return KeyOutcome("refused", text)
    return KeyOutcome("mapped", "", {"trainer.router.replay": True})


def virtual(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None or int(value) < 2:
        return KeyOutcome("ignored", "none")
    return KeyOutcome("mapped", "", {"trainer.virtual_stages": int(value)})


def recompute(value: Any, theirs: Theirs) -> KeyOutcome:
    if value not in ("full", "selective"):
        return KeyOutcome("ignored", "nothing is computed again")
    return KeyOutcome("mapped", "", {"trainer.recompute": True if value == "full" else value})


def checkpointing(value: Any, theirs: Theirs) -> KeyOutcome:
    """Megatron's trainer there has a key of its own for it."""
    if _is_megatron(theirs):
        return KeyOutcome("ignored", "Megatron's recompute_granularity says it")
    return KeyOutcome("mapped", "", {"trainer.recompute": is_on(value)})


def adapters(value: Any, theirs: Theirs) -> KeyOutcome:
    """FSDP's trainer reads lora_rank, Megatron's lora.rank."""
    names = ("lora_rank", "lora_alpha", "target_modules")
    if int(value or 0) <= 0:
        names = ("lora.rank", "lora.alpha", "lora.target_modules")
    return shared.lora(*(theirs[f"{MODEL}.{name}"] for name in names))


def offload(value: Any, theirs: Theirs) -> KeyOutcome:
    """Optimizer and gradients are one key here."""
    keys = [f"{ACTOR}.fsdp_config.optimizer_offload", f"{MCORE}.optimizer_offload"]
    ours = ["optimizer"] if any(theirs.is_on(key) for key in keys) else []
    ours += ["gradients"] if theirs.is_on(f"{MCORE}.grad_offload") else []
    if not is_on(value):
        return KeyOutcome("ignored", "it stays on the device")
    return KeyOutcome("noted", shared.ROOM, {"trainer.offload": ours})


def reference_offload(value: Any, theirs: Theirs) -> KeyOutcome:
    term = kl(theirs[f"{ACTOR}.use_kl_loss"], theirs).settings
    return shared.offload_reference(
        bool(term.get("algorithm.kl.coefficient")), has_adapters(theirs), value
    )


def warmup(value: Any, theirs: Theirs) -> KeyOutcome:
    number = int(value or 0)
    if number <= 0:
        share = float(theirs[f"{ACTOR}.optim.lr_warmup_steps_ratio"] or 0)
        total = "trainer.total_training_steps"
        number = shared.warm_up_share(share, theirs[total] or num_steps(theirs), total)
    return shared.warm_up(number)


def betas(value: Any, theirs: Theirs) -> KeyOutcome:
    betas = [0.9, 0.999] if _is_megatron(theirs) else list(map(float, value))
    settings = {"trainer.beta1": betas[0], "trainer.beta2": betas[1]}
    if list(map(float, value)) == betas:
        return KeyOutcome("mapped", "", settings)
    text = "their Megatron trainer does not read it, and takes 0.9 and 0.999, as here"
    return KeyOutcome("noted", text, settings)


def has_adapters(theirs: Theirs) -> bool:
    return any(int(theirs[f"{MODEL}.{key}"] or 0) > 0 for key in ("lora_rank", "lora.rank"))


def reference(value: Any, theirs: Theirs) -> KeyOutcome:
    """The reference model of the KL term."""
    if value in (None, theirs[f"{MODEL}.path"]):
        return KeyOutcome("ignored", "the reference is model.path")
    return KeyOutcome(
        "refused",
        f"the reference is model.path, with which a run begins: give {MODEL}.path={value}, and set trainer.load"
        " in the run to a checkpoint with which it begins (`trimaran convert MODEL CHECKPOINT` makes one)",
    )


MANAGERS = ("naive", "dapo", "batch", "prime", "gdpo", "rate_limited", "remote")
"""Theirs, which differ in how they call a function, not in what it gives."""


def clip(value: Any, theirs: Theirs) -> KeyOutcome:
    """FSDP's trainer reads grad_clip, Megatron's optim.clip_grad."""
    key = f"{ACTOR}.optim.clip_grad" if _is_megatron(theirs) else f"{ACTOR}.grad_clip"
    return KeyOutcome("mapped", "", {"trainer.clip_grad": float(theirs[key])})


def reward(value: Any, theirs: Theirs) -> KeyOutcome:
    """A function of the user's, or the rule that verl chooses by the rows' data_source."""
    if value:
        options = theirs.under(f"{FUNCTION}.reward_kwargs")
        name = str(theirs[f"{FUNCTION}.name"] or "compute_score")
        return _shaped(shared.reward_function(value, name, options), theirs)
    files = shared.paths_of(theirs["data.train_files"])
    if not files:
        return KeyOutcome("refused", "give data.train_files=FILE")
    found = [distinct(file, str(theirs["data.reward_fn_key"])) for file in files]
    if None in found:
        return _shaped(_by_folder(files[found.index(None)]), theirs)
    sources = sorted({source for known in found for source in known or ()})
    unknown = [
        source for source in sources if source not in SOURCES and not source.startswith("aime")
    ]
    if unknown or not sources:
        return KeyOutcome(
            "refused",
            f"the rows' data_source is {', '.join(sources)}, and verl has no rule for {', '.join(unknown) or 'it'}:"
            " give custom_reward_function.path=FILE.py",
        )
    return _shaped(_by_source(sources, f"which is {', '.join(sources)}"), theirs)


def _by_source(sources: Iterable[str], what: str) -> KeyOutcome:
    """A rule for all rows, or each for those of its sources. A row of none is refused at the start, as there."""
    found: dict[str, list[str]] = {}
    for source in sources:
        found.setdefault(SOURCES.get(source, "acc_for_dapo"), []).append(source)
    text = f"verl chooses it by data_source, {what}"
    if len(found) == 1:
        return KeyOutcome("noted", text, {"reward.rules": dict.fromkeys(found, 1.0)})
    rules = {rule: {"weight": 1.0, "tasks": tasks} for rule, tasks in found.items()}
    return KeyOutcome("noted", text, {"data.task_key": "data_source", "reward.rules": rules})


def _by_folder(file: str) -> KeyOutcome:
    for part_of_it in reversed(Path(file).with_suffix("").parts):
        if rule := FOLDERS.get(part_of_it):
            text = f"verl chooses it by the rows' data_source; {file} has none, so its name says it: {rule}"
            return KeyOutcome("noted", text, {"reward.rules": {rule: 1.0}})
    if not Path(file).is_file():
        return _by_source(
            SOURCES, f"and {file} is not here: a row of another one is refused at the start"
        )
    return KeyOutcome(
        "refused",
        f"verl chooses the reward by the rows' data_source, and {file} has none: prepare it with"
        " `--keep data_source`, or give custom_reward_function.path=FILE.py",
    )


def _shaped(outcome: KeyOutcome, theirs: Theirs) -> KeyOutcome:
    """With DAPO's penalty of answers that are nearly too long, where there is one."""
    rules, kwargs = outcome.settings.get("reward.rules"), "reward.reward_kwargs"
    buffer = theirs.under(f"{kwargs}.overlong_buffer_cfg")
    if not rules or not is_on(buffer.get("enable"), f"{kwargs}.overlong_buffer_cfg.enable"):
        return outcome
    if buffer.get("len") is None:
        text = f"give {kwargs}.overlong_buffer_cfg.len=N, tokens at the end that are penalized"
        return KeyOutcome("refused", text)
    options = {"buffer": int(buffer["len"])}
    if longest := theirs[f"{kwargs}.max_resp_len"]:
        options["max_tokens"] = int(longest)
    overlong = {"weight": float(buffer.get("penalty_factor", 1.0)), "options": options}
    settings = {**outcome.settings, "reward.rules": {**rules, "overlong": overlong}}
    return KeyOutcome(outcome.fate, outcome.text, settings)


def every(ours: str) -> Convert:
    return lambda value, theirs: shared.every(value, ours, num_steps(theirs))


def kept_checkpoints(value: Any, theirs: Theirs) -> KeyOutcome:
    return shared.kept(value, num_steps(theirs), theirs["trainer.save_freq"])


def validation_samples(value: Any, theirs: Theirs) -> KeyOutcome:
    is_greedy = not theirs.is_on(f"{ROLLOUT}.val_kwargs.do_sample")
    return shared.samples(value, theirs[f"{ROLLOUT}.val_kwargs.temperature"], is_greedy)


def columns(value: Any, theirs: Theirs) -> KeyOutcome:
    """verl reads the answer inside of another column; a file that was prepared here has it in `answer`."""
    settings = {"data.prompt_key": value}
    known = [column_names(file) for file in shared.paths_of(theirs["data.train_files"])]
    if any(names is not None and "reward_model" not in names for names in known):
        return KeyOutcome("mapped", "", settings)
    return KeyOutcome("noted", ANSWER, {**settings, "data.answer_key": "reward_model.ground_truth"})


ANSWER = (
    "data.answer_key is reward_model.ground_truth, which verl reads; a file of `trimaran data prepare` has the"
    " answer in `answer`"
)
EXPERTS = "experts of a replica are split by rollout.tensor_parallel alone"
BALANCED = "taken over the packed tokens of a micro-batch"
