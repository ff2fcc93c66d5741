"""Every number that a run reports, declared once: its key, its unit, what it means, its axes.

Rows of metrics.jsonl hold declared keys only, TensorBoard shows the meaning beside each curve, and
docs/metrics.md is this table.

A key names the service that the number is about, then what it is, and last, where it is one, the
statistic: `rollout/completion/length/mean`. A *share* lies between 0 and 1. A part in angle brackets
is an axis: `weight_sync/bytes/<transport>` stands for one key for each transport.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from trimaran.errors import InternalError


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    Example: Metric("rollout/completion/length/max", "tokens", "the longest completion of the step")
    """

    key: str
    """Axes in angle brackets; each is explained in `AXES`."""
    unit: str
    """"1" for a number without one."""
    meaning: str

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(re.findall("<(.+?)>", self.key))

    @property
    def series(self) -> str:
        """Prometheus' name of it; the axes are its labels."""
        key = re.sub("/<([^<>]+)>$", r"/by_\1", self.key)
        return "trimaran_step_" + re.sub("/(<.+?>/)?", "_", key)

    def names_in(self, key: str) -> tuple[str, ...]:
        """What stands in `key` in the place of each axis."""
        found = self._match(key)
        assert found, (key, self.key)
        return found.groups()

    @property
    def description(self) -> str:
        return f"{self.meaning} [{self.unit}]"

    def has(self, key: str) -> bool:
        """Whether `key` is this metric's, with any name in the place of each axis."""
        return self._match(key) is not None

    def _match(self, key: str) -> re.Match[str] | None:
        parts = (re.escape(part) for part in re.split("<.+?>", self.key))
        return re.fullmatch("(.+)".join(parts), key, re.DOTALL)


# Keys that the commands and the pages read.
REWARD_MEAN = "reward/completion/mean"
LENGTH_MEAN = "rollout/completion/length/mean"
LAG_MAX = "rollout/completion/lag/max"
STEP_SECONDS = "controller/step/seconds"
TOKENS_PER_SECOND = "controller/step/tokens_per_second"
PHASE_SECONDS = "controller/phase/{}/seconds"
"""By activity."""
EXPOSED_SCORING = "controller/scoring/exposed_seconds"
EXPOSED_SYNCING = "controller/syncing/exposed_seconds"
PART_SECONDS = "trainer/part/{}/seconds"
"""By part of the trainer's step."""
VALIDATION_SECONDS = "validation/seconds"
GREEDY_REWARD = "validation/greedy_reward/mean"
SAMPLED_REWARD = "validation/sampled_reward/mean"
GREEDY_CORRECT = "validation/greedy_correct/share"
PASS_AT = "validation/pass_at/{}"
"""By a number of samples."""
MAJORITY_AT = "validation/majority_at/{}"
IN_TASK = "validation/task/{}/{}"
"""By the task's name, and what stands behind `validation/` in one of the keys above."""

AXES = {
    "term": "a rule's name under `reward.rules`; `name.part` for what the rule reports beside its value",
    "activity": "`generating`, `scoring`, `training`, `syncing`, or `waiting`: no batch was ready to train",
    "part": "`planning`: groups cut and shared out over ranks and micro-batches; `advantages`; `old_logprobs`: the"
    " policy's own before the first update, where a batch has several updates or the KL term is in the reward;"
    " `reference_logprobs`, with `reference_onload` and `reference_offload` inside, where the reference waits on the"
    " host; `gradient`: forward and backward passes of all updates, which also give entropies; `optimizer`",
    "measure": "what `algorithm.loss` or `algorithm.correction` reports of each token, such as"
    " `clipped/share`; docs/algorithms.md has them",
    "transport": "`collective`, `memory` or `relay`",
    "k": "a number of samples: 1, 2, 4, 8 and so on below `validation.samples` (`validation.final_samples` before the"
    " first step and at the end), and that number itself",
    "task": "a row's `data_source` where it has that column, else the task of its dataset (`data.task`)",
    "level": "`delivered`, `sampled` or `loaded`; docs/weight-plane.md has them",
}

TABLE = """
reward/completion/mean | reward | mean reward of the scored completions
reward/completion/min | reward | least of the same
reward/completion/max | reward | greatest of the same
reward/completion/std | reward | standard deviation of the same
reward/completion/faulted/share | share | completions of the batch without a score, because the scoring failed and not the answer; groups that were filtered do not count
reward/completion/indigestible/share | share | completions on which a checker failed twice; that term is its rule's minimum
reward/group/std | reward | standard deviation inside a group, mean over the groups
reward/group/equal/share | share | groups whose scored rewards are all equal; they give no gradient without a KL term
reward/term/<term>/mean | reward | the term's own value before its weight, mean over the completions where it was judged
reward/term/<term>/min | reward | least value of the same
reward/term/<term>/max | reward | greatest value of the same
reward/term/<term>/faulted/share | share | completions in which the term could not be judged, of those to which it applies
rollout/prompt/length/mean | tokens | mean length of the prompts
rollout/prompt/length/min | tokens | length of the shortest prompt
rollout/prompt/length/max | tokens | length of the longest prompt
rollout/completion/length/mean | tokens | mean length of the completions; of an episode its sampled tokens count
rollout/completion/length/min | tokens | length of the shortest completion
rollout/completion/length/max | tokens | length of the longest completion
rollout/completion/truncated/share | share | completions that a limit ended, of tokens or of an episode's turns, and not their own end
rollout/completion/lag/mean | steps | age of a completion's oldest sampled token as it trains: training steps since its weights
rollout/completion/lag/max | steps | greatest age of the same; `run.max_lag` at most
environment/turns/mean | turns | mean number of the policy's turns of an episode; these seven only of episodes
environment/turns/max | turns | turns of the longest episode
environment/given_tokens/mean | tokens | mean number of tokens that an episode's environment gave between the policy's turns
environment/prefix/cached/share | share | tokens before an episode's later turns that the engine had in its prefix cache
environment/seconds/mean | seconds | mean time of an episode in its environment
environment/calls/mean | calls | mean number of tools that an episode called
environment/calls/failed/share | share | calls that failed, of which the policy was shown why; only where some were made
trainer/learning_rate | 1 | learning rate of the step
trainer/nonfinite_updates | updates | optimizer updates that were left out because a number was not finite
trainer/loss | 1 | loss of an update, mean over the updates
trainer/grad_norm | 1 | L2 norm of the gradient before clipping, mean over the updates
trainer/kl | nats | divergence from the reference model, as `algorithm.kl.estimator` has it, mean over the trained tokens; only with an `algorithm.kl.coefficient`
trainer/kl_coefficient | 1 | weight of the same in the step
trainer/policy/<measure> | 1 | mean over the trained tokens; a token without a forward pass counts as 0
trainer/packed_tokens | tokens | tokens of the forward passes, prompts included
trainer/imbalance | ratio | estimated work of the data-parallel rank that has most, over the ranks' mean
trainer/trained_tokens | tokens | tokens that count in the loss
trainer/computed/tokens | tokens | trained tokens that need a forward pass: their advantage is not 0, or there is a KL or entropy term
trainer/computed/entropy | nats | mean of -log p over the computed tokens, an estimate
trainer/computed/exact_entropy | nats | the same, exact, of the whole vocabulary; with `algorithm.entropy.exact` or a bonus
trainer/computed/logprob_diff/mean | nats | absolute difference of trainer's and engine's log-probability, mean over the computed tokens
trainer/computed/rollout_kl/k1 | nats | mean of engine's less trainer's log-probability: estimates how far the engine's distribution is from the trainer's
trainer/computed/rollout_kl/k3 | nats | the same by k3, with less variance
trainer/computed/ratio/above_two/share | share | computed tokens to which the trainer gives more than twice the engine's probability
trainer/computed/ratio/below_half/share | share | less than half, likewise
trainer/computed/importance_weight/mean | 1 | what `algorithm.correction` multiplies the loss of a token by, mean over the computed tokens
trainer/computed/importance_weight/max | 1 | greatest value of the same
trainer/computed/effective_sample_size/share | share | (sum of these weights)^2 / (computed tokens x sum of their squares): 1 where all are equal
trainer/computed/correction/<measure> | share | computed tokens that `algorithm.correction` has capped or masked
trainer/experts/busiest/mean | ratio | tokens of a layer's busiest expert over the mean of its experts, mean over the layers; all of `trainer/experts` is of packed tokens, of models with experts
trainer/experts/busiest/max | ratio | the same in the most uneven layer
trainer/experts/entropy/mean | share | entropy of a layer's tokens over its experts, of that of an even load; mean over the layers
trainer/experts/entropy/min | share | the same in the most uneven layer
trainer/experts/idle/share | share | experts of all layers that no token has passed
trainer/experts/replay/share | share | choices of experts that were the engine's, with `trainer.router.replay`; the others were not reported or are of padding
trainer/experts/replay/differs/share | share | of these, how many the trainer's own router would not have made
trainer/seconds | s | rank 0's work on the batch: forward, backward and updates
trainer/tokens_per_second | tokens/s | `trainer/packed_tokens` over `trainer/seconds`
trainer/part/<part>/seconds | s | part of `trainer/seconds`; on an accelerator from when the device comes to its beginning until it comes to its end
weight_sync/stage/seconds | s | copying the new version into the replicas' host memory while they go on generating
weight_sync/commit/seconds | s | switching all replicas to it, from the copy's end on
weight_sync/pause/seconds | s | pause of generation for the switch, longest of the replicas
weight_sync/replicas | replicas | replicas that serve the new version
weight_sync/relayed | replicas | replicas that pulled it, or a part of it, by relay: from other replicas or from the trainer
weight_sync/shared | replicas | replicas that loaded it from the memory of another one on their host
weight_sync/bytes | bytes | bytes that the replicas received
weight_sync/bytes/<transport> | bytes | the part of these that came by this transport
weight_sync/delta/share | share | size of the changes that were sent, of the whole version's; absent where all was sent
weight_sync/proof/share | share | blocks of the version before that were read back from the engines and right, of those they hold
weight_sync/proof/seconds | s | reading back the last sample of blocks
weight_sync/proof/tokens/<level> | tokens | completion tokens of the batch whose weights had a proof of this level when it was chosen
controller/step/seconds | s | time since the weights of the step before were live, without validations
controller/phase/<activity>/seconds | s | the part of the step in which at least one process was at this activity
controller/scoring/exposed_seconds | s | the part of the step in which answers were scored and none was generated
controller/syncing/exposed_seconds | s | the part of the step in which weights were published and the trainer did not train: with `run.max_lag` it may train the next batch meanwhile
controller/step/tokens_per_second | tokens/s | prompt and completion tokens of all completions
controller/step/tokens_per_second_per_device | tokens/s | the same for each device of trainer and replicas
controller/step/samples_per_second | samples/s | completions that trained
controller/skipped_prompts | prompts | prompts that were skipped since the step before
controller/replaced_groups | groups | groups with equal rewards that `algorithm.dynamic_sampling` has replaced since the step before
validation/greedy_reward/mean | reward | mean reward of the held-out prompts' completions at temperature 0
validation/sampled_reward/mean | reward | the same at `validation.temperature`, or without it at `rollout.temperature`
validation/greedy_correct/share | share | completions at temperature 0 that are correct, as `validation.correct_by` and `validation.correct_from` have it, of those that were scored
validation/pass_at/<k> | share | pass@k: the chance that one or more of k samples of a prompt are correct, mean over the prompts; pass@1 is the share of correct samples; docs/algorithms.md
validation/majority_at/<k> | share | majority@k: how often the final answer that most of k samples give is correct, mean over the prompts; where a rule reads a final answer; docs/algorithms.md
validation/task/<task>/greedy_reward/mean | reward | as without `task/<task>`, of the prompts of one task or data source; the first 64 names of a validation, by the alphabet, have these
validation/task/<task>/sampled_reward/mean | reward | likewise
validation/task/<task>/greedy_correct/share | share | likewise
validation/task/<task>/pass_at/<k> | share | likewise
validation/task/<task>/majority_at/<k> | share | likewise
validation/seconds | s | time that the validation took, which is in no step's seconds
validation/skipped_prompts | prompts | held-out prompts that could not be generated or scored
"""


def read_metric(line: str) -> Metric:
    """A line of the table."""
    return Metric(*map(str.strip, line.split(" | ")))


METRICS = tuple(map(read_metric, TABLE.strip().splitlines()))


def is_of_validation(key: str) -> bool:
    """And not of the step."""
    return key.startswith("validation/")


def sizes_up_to(num_samples: int) -> list[int]:
    """The k of pass@k and majority@k: powers of two, and the number itself. `sizes_up_to(6) == [1, 2, 4, 6]`"""
    powers = [1 << power for power in range(num_samples.bit_length())]
    return sorted({*powers, num_samples} - {0})


@lru_cache(maxsize=4096)
def find_metric(key: str) -> Metric:
    """The declaration of a row's key. Raises InternalError where there is none."""
    for metric in METRICS:
        if metric.has(key):
            return metric
    raise InternalError(
        f"metric {key!r} is not declared; add a line to TABLE in trimaran/telemetry/metrics.py"
    )
