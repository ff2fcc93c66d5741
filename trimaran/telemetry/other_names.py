"""The names that other projects give to a step's numbers, and how each follows from ours.

    others = OtherNames(("verl",), facts)
    others.of({"controller/step/seconds": 12.0})  # {"timing_s/step": 12.0, "perf/time_per_step": 12.0}

Their meanings: verl's verl/trainer/ppo/metric_utils.py and ray_trainer.py; MindSpeed-RL's
docs/zh/features/log_metrics.md, mindspeed_rl/utils/utils.py and trainer/. A name whose ingredients a step
lacks is left out. docs/migrating.md is made from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trimaran.config import RunConfig, SchemeName
from trimaran.telemetry.metrics import (
    EXPOSED_SCORING,
    PART_SECONDS,
    PHASE_SECONDS,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
    find_metric,
)
from trimaran.telemetry.validation_names import verl_validation

GENERATING, SCORING, SYNCING = map(PHASE_SECONDS.format, ("generating", "scoring", "syncing"))
OLD, REFERENCE, ONLOAD, OFFLOAD, ADVANTAGES, GRADIENT, OPTIMIZER = map(
    PART_SECONDS.format,
    (
        *("old_logprobs", "reference_logprobs", "reference_onload", "reference_offload"),
        *("advantages", "gradient", "optimizer"),
    ),
)
TERM_MEAN = "reward/term/<term>/mean"
ENTROPY, EXACT_ENTROPY = "trainer/computed/entropy", "trainer/computed/exact_entropy"


@dataclass(frozen=True, slots=True)
class Facts:
    """Of the run, as far as names need it."""

    devices: int
    """Dies of the trainer and of all replicas that the run starts with."""
    has_one_update: bool = True
    """A batch is gone through once, in one update: each token's ratio is then 1."""
    is_plain_loss: bool = True
    """The loss is the policy's term alone: no KL term and no entropy bonus stand in it."""
    kl_in_reward: bool = False


def facts_of(config: RunConfig) -> Facts:
    """Example: facts_of(config).devices == config.num_devices"""
    algorithm = config.algorithm
    has_kl, in_reward = algorithm.kl.coefficient > 0, algorithm.kl.place == "reward"
    return Facts(
        devices=config.num_devices,
        has_one_update=algorithm.num_updates == 1 and algorithm.correction.old == "trainer",
        is_plain_loss=algorithm.entropy.coefficient == 0 and (not has_kl or in_reward),
        kl_in_reward=has_kl and in_reward,
    )


class Step:
    """A step's row, with our keys, and the facts of its run."""

    def __init__(self, values: Mapping[str, float], facts: Facts) -> None:
        self.values, self.facts = values, facts

    def __getitem__(self, key: str) -> float:
        """Raises KeyError, so that a name is left out whose ingredient is not there."""
        return self.values[key]

    @property
    def num_tokens(self) -> float:
        """Prompt and completion tokens of every completion."""
        return self[TOKENS_PER_SECOND] * self[STEP_SECONDS]

    def per_device(self, seconds: float) -> float:
        """Tokens a second and die. Raises KeyError for no time."""
        if not seconds:
            raise KeyError("no time was taken")
        return self.num_tokens / seconds / self.facts.devices


@dataclass(frozen=True, slots=True)
class Name:
    """One of their names.

    Example: Name(("verl",), "actor/lr", ("trainer/learning_rate",), "", lambda step: step["trainer/learning_rate"])
    """

    schemes: tuple[SchemeName, ...]
    name: str
    """With an axis in angle brackets where ours has it."""
    keys: tuple[str, ...]
    """Ours, of which it is made."""
    text: str
    """How, and what differs."""
    value: Callable[[Step], float]


VERL: tuple[SchemeName, ...] = ("verl",)
MINDSPEED: tuple[SchemeName, ...] = ("mindspeed-rl",)
BOTH: tuple[SchemeName, ...] = ("verl", "mindspeed-rl")


def _same(schemes: tuple[SchemeName, ...], name: str, key: str, text: str = "") -> Name:
    return Name(schemes, name, (key,), text, lambda step: step[key])


def _zero(schemes: tuple[SchemeName, ...], name: str, text: str) -> Name:
    return Name(schemes, name, (), text, lambda step: 0.0)


def _update(step: Step) -> float:
    """Without an optimizer where a number was not finite in each update."""
    return step[GRADIENT] + step.values.get(OPTIMIZER, 0.0)


def _none_beside_reference(step: Step) -> float:
    """Raises KeyError where there is no reference."""
    return min(0.0, step[REFERENCE])


def _entropy(step: Step) -> float:
    return step.values.get(EXACT_ENTROPY, step[ENTROPY])


def _policy_loss(step: Step) -> float:
    if not step.facts.is_plain_loss:
        raise KeyError("other terms stand in the loss")
    return step["trainer/loss"]


def _policy_kl(step: Step) -> float:
    if not step.facts.has_one_update:
        raise KeyError("nobody measures it between updates")
    return 0.0


def _rewards(key: str) -> Callable[[Step], float]:
    def value(step: Step) -> float:
        if step.facts.kl_in_reward:
            raise KeyError("the trainer takes the penalty off")
        return step[key]

    return value


def _statistics() -> tuple[Name, ...]:
    """Of rewards and lengths: mean, greatest and least."""
    made: list[Name] = []
    for statistic in ("mean", "max", "min"):
        reward = f"reward/completion/{statistic}"
        made += [
            _same(VERL, f"critic/score/{statistic}", reward),
            _same(MINDSPEED, f"grpo/score/{statistic}", reward),
        ]
        text = "absent with `algorithm.kl.place: reward`"
        value = _rewards(reward)
        made += [
            Name(VERL, f"critic/rewards/{statistic}", (reward,), text, value),
            Name(MINDSPEED, f"grpo/rewards/{statistic}", (reward,), text, value),
            _same(BOTH, f"response_length/{statistic}", f"rollout/completion/length/{statistic}"),
            _same(BOTH, f"prompt_length/{statistic}", f"rollout/prompt/length/{statistic}"),
        ]
    return tuple(made)


NO_VALIDATION = "without validations, which verl counts in"
PER_DIE = "prompt and completion tokens / (dies of trainer and replicas x {})"
UPDATE = "forward and backward passes and the optimizer, of all updates"
OLD_PASS = "absent where no pass is needed, as with one update of a batch"

NAMES: tuple[Name, ...] = (
    # Time.
    _same(VERL, "timing_s/step", STEP_SECONDS, NO_VALIDATION),
    _same(VERL, "timing_s/gen", GENERATING),
    _same(VERL, "timing_s/generate_sequences", GENERATING),
    _same(VERL, "timing_s/generate_sequence", GENERATING, "as MindSpeed-MM's guide calls it"),
    _same(VERL, "timing_s/reward", SCORING),
    _same(VERL, "timing_s/old_log_prob", OLD, OLD_PASS),
    _same(VERL, "timing_s/ref", REFERENCE),
    _same(VERL, "timing_s/adv", ADVANTAGES),
    Name(VERL, "timing_s/update_actor", (GRADIENT, OPTIMIZER), UPDATE, _update),
    _same(VERL, "timing_s/update_weights", SYNCING),
    _same(VERL, "timing_s/reshard", SYNCING, "as MindSpeed-MM's guide calls it"),
    _same(MINDSPEED, "timing/all", STEP_SECONDS),
    _same(MINDSPEED, "timing/rollout", GENERATING),
    _same(MINDSPEED, "timing/rule_reward", SCORING),
    _same(
        MINDSPEED,
        "timing/non_overlap_rule_reward",
        EXPOSED_SCORING,
        "answers were scored and none was generated",
    ),
    _same(MINDSPEED, "timing/old_log_p", OLD, OLD_PASS),
    _same(MINDSPEED, "timing/reference_model", REFERENCE),
    Name(
        MINDSPEED,
        "timing/non_overlap_reference_model",
        (REFERENCE,),
        "0: `timing/reference_model` has all of it. Theirs is 0 too where devices take turns, as the reference goes"
        " before old_log_p there, and their sum of parts would have it twice",
        _none_beside_reference,
    ),
    _same(MINDSPEED, "timing/ref_onload", ONLOAD, "a part of the same"),
    _same(MINDSPEED, "timing/ref_offload", OFFLOAD, "a part of the same"),
    _same(MINDSPEED, "timing/adv", ADVANTAGES),
    _same(MINDSPEED, "timing/non_overlap_adv", ADVANTAGES, "nothing runs beside it"),
    Name(MINDSPEED, "timing/update", (GRADIENT, OPTIMIZER), UPDATE, _update),
    _same(MINDSPEED, "timing/resharding_to_infer", SYNCING),
    _same(MINDSPEED, "timing/reshard_to_infer", SYNCING, "another name of the same in the guides"),
    _zero(MINDSPEED, "timing/resharding_to_train", "0: the trainer's weights stay where they are"),
    _zero(MINDSPEED, "timing/reshard_to_train", "0, likewise"),
    # Speed.
    Name(
        VERL,
        "perf/total_num_tokens",
        (TOKENS_PER_SECOND, STEP_SECONDS),
        "prompt and completion tokens of all completions",
        lambda step: step.num_tokens,
    ),
    _same(VERL, "perf/time_per_step", STEP_SECONDS, NO_VALIDATION),
    Name(
        VERL,
        "perf/throughput",
        (TOKENS_PER_SECOND,),
        PER_DIE.format("time of the step"),
        lambda step: step.per_device(step[STEP_SECONDS]),
    ),
    Name(
        MINDSPEED,
        "e2e_tps",
        (TOKENS_PER_SECOND,),
        PER_DIE.format("`timing/all`") + "; mean lengths, whatever log_max_throughput says there",
        lambda step: step.per_device(step[STEP_SECONDS]),
    ),
    Name(
        MINDSPEED,
        "update_tps",
        (TOKENS_PER_SECOND, STEP_SECONDS, GRADIENT, OPTIMIZER),
        PER_DIE.format("`timing/update`"),
        lambda step: step.per_device(_update(step)),
    ),
    Name(
        MINDSPEED,
        "vllm_tps",
        (TOKENS_PER_SECOND, STEP_SECONDS, GENERATING),
        PER_DIE.format("`timing/rollout`"),
        lambda step: step.per_device(step[GENERATING]),
    ),
    # The policy.
    Name(
        BOTH,
        "actor/entropy",
        (EXACT_ENTROPY, ENTROPY),
        "exact where it is measured, else the estimate; over computed tokens, and absent where there are none",
        _entropy,
    ),
    _same(BOTH, "actor/kl_loss", "trainer/kl"),
    _same(VERL, "actor/kl_coef", "trainer/kl_coefficient"),
    Name(
        VERL,
        "actor/pg_loss",
        ("trainer/loss",),
        "only where no KL term and no entropy bonus stands in the loss",
        _policy_loss,
    ),
    Name(
        MINDSPEED,
        "actor/pg_loss",
        ("trainer/loss",),
        "its absolute value, with the KL term and the entropy bonus, as there",
        lambda step: abs(step["trainer/loss"]),
    ),
    _same(BOTH, "actor/pg_clipfrac", "trainer/policy/clipped/share"),
    _same(VERL, "actor/pg_clipfrac_lower", "trainer/policy/dual_clipped/share"),
    Name(
        BOTH,
        "actor/ppo_kl",
        (),
        "0 with one update of a batch, where each ratio is 1; else left out",
        _policy_kl,
    ),
    _same(VERL, "actor/grad_norm", "trainer/grad_norm"),
    _same(MINDSPEED, "grad_norm", "trainer/grad_norm"),
    _same(VERL, "actor/lr", "trainer/learning_rate"),
    _same(MINDSPEED, "grpo/lr", "trainer/learning_rate"),
    # Rewards and lengths.
    _same(MINDSPEED, "<term>_rewards/mean", TERM_MEAN),
    *_statistics(),
    _same(
        VERL,
        "response_length/clip_ratio",
        "rollout/completion/truncated/share",
        "completions that the limit ended",
    ),
)

LEFT_OUT: Mapping[str, str] = {
    "`timing_s/save_checkpoint`": "outside of a step here",
    "`critic/advantages/*`, `critic/returns/*`": "they stay in the trainer",
    "`critic/values/*`, `critic/vf_*`, `timing*/update_critic`": "there is no critic",
    "`grpo/rewards/*` of a reward model, `timing/reward_model`": "there is no reward model",
}
"""Their names that no number of ours is for, and why."""


@dataclass(frozen=True, slots=True)
class OtherNames:
    """The names of some schemes, for the steps of one run."""

    schemes: Sequence[SchemeName]
    facts: Facts

    def of(self, values: Mapping[str, float]) -> dict[str, float]:
        """A step's numbers by their names. `values`: by ours."""
        step, made = Step(values, self.facts), dict[str, float]()
        for name in NAMES:
            if not set(name.schemes) & set(self.schemes):
                continue
            if "<" in name.name:
                made |= self._by_axis(name, values)
                continue
            try:
                made[name.name] = name.value(step)
            except KeyError:
                continue
        return made

    def of_validation(self, values: Mapping[str, float]) -> dict[str, float]:
        """The same of a validation."""
        return verl_validation(values) if "verl" in self.schemes else {}

    def _by_axis(self, name: Name, values: Mapping[str, float]) -> dict[str, float]:
        metric = find_metric(name.keys[0])
        axis = f"<{metric.axes[0]}>"
        return {
            name.name.replace(axis, metric.names_in(key)[0]): value
            for key, value in values.items()
            if metric.has(key)
        }
