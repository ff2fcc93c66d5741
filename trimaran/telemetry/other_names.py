"""The names that other projects give to a step's numbers, and how each follows from ours.

    others = OtherNames(("verl",), facts)
    others.of({"controller/step/seconds": 12.0})  # {"timing_s/step": 12.0, "perf/time_per_step": 12.0}

Their meanings: verl's verl/trainer/ppo/metric_utils.py and ray_trainer.py; MindSpeed-RL's
docs/zh/features/log_metrics.md, mindspeed_rl/utils/utils.py and trainer/. A name whose ingredients a step
lacks is left out. docs/migrating.md says what they mean.
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
STATISTICS = ("mean", "max", "min")
ENTROPY, EXACT_ENTROPY = "trainer/computed/entropy", "trainer/computed/exact_entropy"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the names need to know of the run."""

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


def _update(step: Step) -> float:
    """Without an optimizer where a number was not finite in each update."""
    return step[GRADIENT] + step.values.get(OPTIMIZER, 0.0)


def _none_beside_reference(step: Step) -> float:
    """0, as `timing/reference_model` has all of it. Raises KeyError where there is no reference."""
    return min(0.0, step[REFERENCE])


def _policy_loss(step: Step) -> float:
    if not step.facts.is_plain_loss:
        raise KeyError("other terms stand in the loss")
    return step["trainer/loss"]


def _policy_kl(step: Step) -> float:
    """0 with one update of a batch, where each ratio is 1; it is not measured between updates."""
    if not step.facts.has_one_update:
        raise KeyError("it is not measured between updates")
    return 0.0


def _rewards(key: str) -> Callable[[Step], float]:
    def value(step: Step) -> float:
        if step.facts.kl_in_reward:
            raise KeyError("the trainer takes the penalty off")
        return step[key]

    return value


Value = str | Callable[[Step], float]
"""Our key, or what is made of several."""
BOTH: Mapping[str, Value] = {
    "actor/entropy": lambda step: step.values.get(EXACT_ENTROPY, step[ENTROPY]),
    "actor/kl_loss": "trainer/kl",
    "actor/pg_clipfrac": "trainer/policy/clipped/share",
    "actor/ppo_kl": _policy_kl,
    **{
        f"{theirs}_length/{statistic}": f"rollout/{ours}/length/{statistic}"
        for theirs, ours in (("response", "completion"), ("prompt", "prompt"))
        for statistic in STATISTICS
    },
}
NAMES: Mapping[str, Mapping[str, Value]] = {
    "verl": {
        **BOTH,
        "timing_s/step": STEP_SECONDS,
        "timing_s/gen": GENERATING,
        "timing_s/generate_sequences": GENERATING,
        "timing_s/generate_sequence": GENERATING,
        "timing_s/reward": SCORING,
        "timing_s/old_log_prob": OLD,
        "timing_s/ref": REFERENCE,
        "timing_s/adv": ADVANTAGES,
        "timing_s/update_actor": _update,
        "timing_s/update_weights": SYNCING,
        "timing_s/reshard": SYNCING,
        "perf/total_num_tokens": lambda step: step.num_tokens,
        "perf/time_per_step": STEP_SECONDS,
        "perf/throughput": lambda step: step.per_device(step[STEP_SECONDS]),
        "actor/kl_coef": "trainer/kl_coefficient",
        "actor/pg_loss": _policy_loss,
        "actor/pg_clipfrac_lower": "trainer/policy/dual_clipped/share",
        "actor/grad_norm": "trainer/grad_norm",
        "actor/lr": "trainer/learning_rate",
        "response_length/clip_ratio": "rollout/completion/truncated/share",
        **{f"critic/score/{name}": f"reward/completion/{name}" for name in STATISTICS},
        **{f"critic/rewards/{name}": _rewards(f"reward/completion/{name}") for name in STATISTICS},
    },
    "mindspeed-rl": {
        **BOTH,
        "timing/all": STEP_SECONDS,
        "timing/rollout": GENERATING,
        "timing/rule_reward": SCORING,
        "timing/non_overlap_rule_reward": EXPOSED_SCORING,
        "timing/old_log_p": OLD,
        "timing/reference_model": REFERENCE,
        "timing/non_overlap_reference_model": _none_beside_reference,
        "timing/ref_onload": ONLOAD,
        "timing/ref_offload": OFFLOAD,
        "timing/adv": ADVANTAGES,
        "timing/non_overlap_adv": ADVANTAGES,
        "timing/update": _update,
        "timing/resharding_to_infer": SYNCING,
        "timing/reshard_to_infer": SYNCING,
        # The trainer's weights stay where they are.
        "timing/resharding_to_train": lambda step: 0.0,
        "timing/reshard_to_train": lambda step: 0.0,
        "e2e_tps": lambda step: step.per_device(step[STEP_SECONDS]),
        "update_tps": lambda step: step.per_device(_update(step)),
        "vllm_tps": lambda step: step.per_device(step[GENERATING]),
        "actor/pg_loss": lambda step: abs(step["trainer/loss"]),
        "grad_norm": "trainer/grad_norm",
        "grpo/lr": "trainer/learning_rate",
        **{f"grpo/score/{name}": f"reward/completion/{name}" for name in STATISTICS},
        **{f"grpo/rewards/{name}": _rewards(f"reward/completion/{name}") for name in STATISTICS},
    },
}


@dataclass(frozen=True, slots=True)
class OtherNames:
    """The names of some schemes, for the steps of one run."""

    schemes: Sequence[SchemeName]
    facts: Facts

    def of(self, values: Mapping[str, float]) -> dict[str, float]:
        """A step's numbers by their names. `values`: by ours."""
        step, made = Step(values, self.facts), dict[str, float]()
        for scheme in (scheme for scheme in NAMES if scheme in self.schemes):
            for name, value in NAMES[scheme].items():
                try:
                    made[name] = step[value] if isinstance(value, str) else value(step)
                except KeyError:
                    continue
        return made | (_verifiers(values) if "mindspeed-rl" in self.schemes else {})

    def of_validation(self, values: Mapping[str, float]) -> dict[str, float]:
        """The same of a validation."""
        return verl_validation(values) if "verl" in self.schemes else {}


def _verifiers(values: Mapping[str, float]) -> dict[str, float]:
    """MindSpeed-RL's mean of each verifier, which is a rule here."""
    means = find_metric(TERM_MEAN)
    return {
        f"{means.names_in(key)[0]}_rewards/mean": value
        for key, value in values.items()
        if means.has(key)
    }
