"""Conversions of verl's keys that look at more than one of them; the table is commands/importing/verl.py."""

from __future__ import annotations

from typing import Any

from commands.importing import shared
from commands.importing.layout import Shape
from commands.importing.processor_file import QWEN25_VL, pixel_bounds
from commands.importing.rows import Convert, KeyOutcome, Theirs, becomes, deny, is_on, nothing
from commands.importing.rows_file import column_names

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
MCORE = f"{ACTOR}.megatron"
TRANSFORMER = f"{MCORE}.override_transformer_config"
CORRECTION = "algorithm.rollout_correction"
TOTAL = "trainer.total_training_steps"

BOUNDS = {"clip_low": "clip_ratio_low", "clip_high": "clip_ratio_high"}
COVARIANCES = {
    "share": "policy_loss.clip_cov_ratio",
    "lower": "policy_loss.clip_cov_lb",
    "upper": "policy_loss.clip_cov_ub",
}
LOSSES = {
    "ppo_clip": {**BOUNDS, "dual_clip": "clip_ratio_c"},
    "gspo": BOUNDS,
    "cispo": BOUNDS,
    "geometric_mean": BOUNDS,
    "sapo": {"tau_positive": "tau_pos", "tau_negative": "tau_neg"},
    "clip_cov": {**BOUNDS, **COVARIANCES},
    "kl_cov": {"share": "policy_loss.kl_cov_ratio", "coefficient": "policy_loss.ppo_kl_coef"},
}
LOSS_TYPES = {
    "vanilla": "ppo_clip",
    "geo_mean": "geometric_mean",
    **{name: name for name in ("gspo", "cispo", "sapo", "clip_cov", "kl_cov")},
}
OF_SEQUENCES = ("gspo", "sapo", "geo_mean")
"""Losses that have the mean over sequences, whatever loss_agg_mode says."""
AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-mean": "sequence_mean",
}
ADVANTAGES = {
    "gdpo": "gdpo",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "opo": "opo",
    "remax": "remax",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
}
BY_STD = {"grpo": "group", "grpo_vectorized": "group", "grpo_passk": "best_of_group"}
"""Advantages that norm_adv_by_std_in_grpo looks at."""
ANSWER = (
    "data.answer_key is reward_model.ground_truth, which verl reads; a file of `trimaran data prepare` has the"
    " answer in `answer`"
)
NO_SIZE = "there ppo_micro_batch_size_per_gpu has to say it; one sequence, which changes memory and pace alone"
SCALED = (
    "as verl since February 2026; before, it did not divide by the number of completions too, so scale the learning"
    " rate of an older run"
)


def _is_megatron(theirs: Theirs) -> bool:
    return theirs[f"{ACTOR}.strategy"] == "megatron" or any(
        not key.startswith("router_replay.") for key in theirs.under(MCORE)
    )


def _drawn(theirs: Theirs) -> int:
    """Prompts that their loader gives at once: so many rows of an epoch."""
    number = theirs["data.gen_batch_size"]
    return int(theirs["data.train_batch_size"] if number is None else number)


def _prompts(theirs: Theirs) -> int:
    """The groups of a step. With filter_groups they draw until train_batch_size of them are left."""
    filters = theirs.is_on("algorithm.filter_groups.enable")
    return int(theirs["data.train_batch_size"]) if filters else _drawn(theirs)


def batch(value: Any, theirs: Theirs) -> KeyOutcome:
    return becomes({"run.groups_per_step": _prompts(theirs)})


def steps(value: Any, theirs: Theirs) -> KeyOutcome:
    """Whichever of total_training_steps and total_epochs is over first."""
    total, epochs = theirs[TOTAL], value
    more = (epochs, _drawn(theirs), theirs["data.train_files"], TOTAL)
    of_epochs = shared.known_steps(shared.steps_of(None, *more))
    if total is not None and of_epochs is not None and of_epochs < int(total):
        text = (
            f"its {epochs} epochs end before {TOTAL}={total}, as there, but for a rate that falls"
        )
        return becomes({"run.steps": of_epochs}, text)
    outcome = shared.steps_of(total, *more)
    if "run.epochs" in outcome.settings and _drawn(theirs) != _prompts(theirs):
        return deny(
            "an epoch is counted by data.gen_batch_size, a step by data.train_batch_size, and the rows of the"
            f" training file cannot be counted here: bring it, or give {TOTAL}=N"
        )
    return outcome


def most_rows(value: Any, theirs: Theirs) -> KeyOutcome:
    """The rows of the training file, on which theirs goes through an epoch."""
    found = shared.rows_of(shared.paths_of(theirs["data.train_files"]))
    most = int(-1 if value is None else value)
    if most < 1 or (found is not None and found <= most):
        return nothing("all rows train")
    return deny(
        f"all rows of a file train here: give data.train_files a file of {most} rows (`trimaran data prepare"
        f" … --limit {most}` reads the first ones), and -1"
    )


def as_in_data(key: str) -> Convert:
    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        if value is None or int(value) == int(theirs[key]):
            return nothing(f"it is {key}")
        return deny(f"one length counts here: give {key}={value}, and leave it out")

    return convert


def images(value: Any, theirs: Theirs) -> KeyOutcome:
    """verl leaves the size of images to the model's own processor."""
    outcome = shared.image_key(value, theirs)
    if not outcome.settings:
        return outcome
    bounds = pixel_bounds(str(theirs[f"{MODEL}.path"]))
    least, most = bounds or QWEN25_VL
    settings = {**outcome.settings, "data.min_pixels": least, "data.max_pixels": most}
    unknown = "the model's preprocessor_config.json is not here: pixels are bounded as Qwen2.5-VL's"
    return becomes(settings, "; ".join(filter(None, (outcome.text, "" if bounds else unknown))))


def most_validated(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None or int(value) < 1:
        return becomes({"validation.max_prompts": shared.ALL_PROMPTS})
    text = "the first ones; there they are drawn, where data.shuffle is on"
    return becomes({"validation.max_prompts": int(value)}, text)


def truncation(value: Any, theirs: Theirs) -> KeyOutcome:
    text = "a longer prompt is skipped, not cut"
    if value in ("error", None) or theirs.is_on("data.filter_overlong_prompts"):
        return nothing(text)
    return deny(f"{text}; give error")


def advantage(value: Any, theirs: Theirs) -> KeyOutcome:
    by_std = theirs.is_on("algorithm.norm_adv_by_std_in_grpo")
    if value in BY_STD:
        ours = {"type": BY_STD[value], "normalize_std": by_std}
        return becomes({"algorithm.advantage": ours})
    if value in ADVANTAGES:
        return becomes({"algorithm.advantage": ADVANTAGES[value]})
    why = "gae needs a critic, and there is none here: " if value == "gae" else ""
    return deny(f"{why}give one of {', '.join([*BY_STD, *ADVANTAGES])} (given: {value})")


def updates(value: Any, theirs: Theirs) -> KeyOutcome:
    return shared.updates_of(_prompts(theirs), int(value), f"{ACTOR}.ppo_mini_batch_size")


def micro_batch(value: Any, theirs: Theirs) -> KeyOutcome:
    """The token limit of the ranks that share a sequence, together."""
    if is_on(value):
        tokens = int(theirs[f"{ACTOR}.ppo_max_token_len_per_gpu"]) * _context(theirs)
        return becomes({"trainer.micro_batch_tokens": tokens})
    sequences = theirs[f"{ACTOR}.ppo_micro_batch_size_per_gpu"]
    longest = int(theirs["data.max_prompt_length"]) + int(theirs["data.max_response_length"])
    if sequences is None:
        return becomes({"trainer.micro_batch_tokens": longest}, NO_SIZE)
    return becomes({"trainer.micro_batch_tokens": int(sequences) * longest})


def _context(theirs: Theirs) -> int:
    if _is_megatron(theirs):
        return theirs.size(f"{MCORE}.context_parallel_size")
    return theirs.size(f"{ACTOR}.ulysses_sequence_parallel_size")


def kl(value: Any, theirs: Theirs) -> KeyOutcome:
    in_loss, in_reward = is_on(value), theirs.is_on("algorithm.use_kl_in_reward")
    if in_loss and in_reward:
        return deny("the KL term has one place here: give algorithm.use_kl_in_reward=False")
    if in_loss:
        names = ("kl_loss_coef", "kl_loss_type")
        return shared.kl_in("loss", *(theirs[f"{ACTOR}.{name}"] for name in names))
    if not in_reward:
        return shared.NO_KL
    names = ("kl_ctrl.kl_coef", "kl_penalty")
    return shared.kl_in("reward", *(theirs[f"algorithm.{name}"] for name in names))


def aggregation(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs[f"{ACTOR}.policy_loss.loss_mode"] in OF_SEQUENCES:
        # In the loss, beside the policy's own terms.
        has_entropy = float(theirs[f"{ACTOR}.entropy_coeff"] or 0) != 0
        has_others = has_entropy or theirs.is_on(f"{ACTOR}.use_kl_loss")
        text = f"there the KL term and the entropy keep {value}, beside such a loss; here all have one mean"
        is_same = value == "seq-mean-token-mean" or not has_others
        return becomes({"algorithm.aggregation": "sequence_mean"}, "" if is_same else text)
    if value == "seq-mean-token-sum-norm":
        fixed = {"type": "fixed", "tokens": int(theirs["data.max_response_length"])}
        return becomes({"algorithm.aggregation": fixed}, SCALED)
    if value not in AGGREGATIONS:
        return deny(f"aggregations are {', '.join(AGGREGATIONS)} (given: {value})")
    return becomes({"algorithm.aggregation": AGGREGATIONS[value]})


def correction(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs.is_on(f"{CORRECTION}.bypass_mode"):
        return becomes({"algorithm.correction.old": "rollout"})
    if value is None:
        return nothing("none")
    if value not in ("token", "sequence"):
        return deny("give token, sequence or null")
    return becomes({"algorithm.correction.weights": value})


def correction_bounds(value: Any, theirs: Theirs) -> KeyOutcome:
    """A number truncates weights; of "low_high" those outside become 0 (rollout_corr_helper.py)."""
    outcome = correction(theirs[f"{CORRECTION}.rollout_is"], theirs)
    weights = outcome.settings.get("algorithm.correction.weights")
    if weights is None:
        return nothing("no weights")
    low, _, high = str(value).rpartition("_")
    if not low:
        return becomes({"algorithm.correction.cap": float(value)})
    if weights == "sequence":
        return deny(
            "two bounds are of a token's weight here; give one number, which truncates the weight of a sequence, or"
            " set algorithm.correction.geometric_bounds in the run"
        )
    bounds = {"algorithm.correction.token_bounds": [float(low), float(high)]}
    return becomes({"algorithm.correction.cap": None, **bounds})


def filtering(value: Any, theirs: Theirs) -> KeyOutcome:
    if not is_on(value):
        return shared.ALL_GROUPS
    return shared.dynamic_sampling(
        tries=int(theirs["algorithm.filter_groups.max_num_gen_batches"] or 0),
        share=_drawn(theirs) / int(theirs["data.train_batch_size"]),
        text=f"there {theirs['algorithm.filter_groups.metric']} of a group must differ, here its rewards;"
        " algorithm.dynamic_sampling.term looks at one reward rule alone. When no more may be replaced they end,"
        " and we train on what there is",
    )


def layout(value: Any, theirs: Theirs) -> KeyOutcome:
    is_megatron = _is_megatron(theirs)
    tensor, pipeline, expert = (
        theirs.size(f"{MCORE}.{name}_model_parallel_size") if is_megatron else 1
        for name in ("tensor", "pipeline", "expert")
    )
    # Where nothing else is said megatron-core splits experts as it splits the rest.
    slices = theirs[f"{MCORE}.expert_tensor_parallel_size"] or (tensor if expert > 1 else 1)
    shape = Shape(
        devices=int(value) * int(theirs["trainer.nnodes"]),
        rollout_tensor=int(theirs[f"{ROLLOUT}.tensor_model_parallel_size"]),
        tensor=tensor,
        pipeline=pipeline,
        context=_context(theirs),
        expert=expert,
        expert_tensor=int(slices) if is_megatron else 1,
        sequence=True,
    )
    return shape.outcome(theirs.in_turns)


def replay(value: Any, theirs: Theirs) -> KeyOutcome:
    """Whose choice of experts counts in the trainer."""
    if value == "disabled":
        return nothing("off")
    if value != "R3":
        return deny("experts are the engine's choice (R3) or the trainer's (disabled)")
    if not theirs.is_on(f"{ROLLOUT}.enable_rollout_routing_replay"):
        return deny(
            f"R3 takes the engine's choice: give {ROLLOUT}.enable_rollout_routing_replay=True"
        )
    return becomes({"trainer.router.replay": True})


def checkpointing(value: Any, theirs: Theirs) -> KeyOutcome:
    """Megatron's trainer there has a key of its own for it."""
    if _is_megatron(theirs):
        return nothing("Megatron's recompute_granularity says it")
    return becomes({"trainer.recompute": is_on(value)})


def adapters(value: Any, theirs: Theirs) -> KeyOutcome:
    """FSDP's trainer reads lora_rank, Megatron's lora.rank."""
    names = ("lora_rank", "lora_alpha", "target_modules")
    if int(value or 0) <= 0:
        names = ("lora.rank", "lora.alpha", "lora.target_modules")
    return shared.lora(*(theirs[f"{MODEL}.{name}"] for name in names))


def offload(value: Any, theirs: Theirs) -> KeyOutcome:
    """Optimizer and gradients are one key here."""
    if not is_on(value):
        return nothing("it stays on the device")
    keys = [f"{ACTOR}.fsdp_config.optimizer_offload", f"{MCORE}.optimizer_offload"]
    ours = ["optimizer"] if any(map(theirs.is_on, keys)) else []
    ours += ["gradients"] if theirs.is_on(f"{MCORE}.grad_offload") else []
    return becomes({"trainer.offload": ours}, shared.ROOM)


def reference_offload(value: Any, theirs: Theirs) -> KeyOutcome:
    ranks = (theirs[f"{MODEL}.{key}"] for key in ("lora_rank", "lora.rank"))
    has_adapters = any(int(rank or 0) > 0 for rank in ranks)
    term = kl(theirs[f"{ACTOR}.use_kl_loss"], theirs)
    return shared.offload_reference(value, term, has_adapters)


def warmup(value: Any, theirs: Theirs) -> KeyOutcome:
    """A share is one of total_training_steps, where that is given."""
    known = shared.known_steps(steps(theirs["trainer.total_epochs"], theirs))
    share = theirs[f"{ACTOR}.optim.lr_warmup_steps_ratio"]
    return shared.warm_up(value, share, int(theirs[TOTAL] or 0) or known, TOTAL)


def least_rate(value: Any, theirs: Theirs) -> KeyOutcome:
    """A share of the learning rate."""
    rate = float(value or 0) * float(theirs[f"{ACTOR}.optim.lr"])
    return becomes({"trainer.min_learning_rate": rate} if rate else {})


def computed_in(value: Any, theirs: Theirs) -> KeyOutcome:
    """The trainer's type of numbers, which is the engine's."""
    text = "trainer and engine compute in one type, model.dtype"
    engines = shared.type_name(theirs[f"{ROLLOUT}.dtype"])
    if value is None or shared.type_name(value) == engines:
        return nothing(text)
    return deny(f"{text}: give {engines}, or {ROLLOUT}.dtype={value} too")


def clip(value: Any, theirs: Theirs) -> KeyOutcome:
    """FSDP's trainer reads grad_clip, Megatron's optim.clip_grad."""
    key = f"{ACTOR}.optim.clip_grad" if _is_megatron(theirs) else f"{ACTOR}.grad_clip"
    return becomes({"trainer.clip_grad": float(theirs[key])})


def validation_samples(value: Any, theirs: Theirs) -> KeyOutcome:
    is_greedy = not theirs.is_on(f"{ROLLOUT}.val_kwargs.do_sample")
    return shared.samples(value, theirs[f"{ROLLOUT}.val_kwargs.temperature"], is_greedy)


def columns(value: Any, theirs: Theirs) -> KeyOutcome:
    """verl reads the answer inside of another column; a file that was prepared here has it in `answer`."""
    settings = {"data.prompt_key": value}
    known = [column_names(file) for file in shared.paths_of(theirs["data.train_files"])]
    if any(names is not None and "reward_model" not in names for names in known):
        return becomes(settings)
    return becomes({**settings, "data.answer_key": "reward_model.ground_truth"}, ANSWER)
