"""A step in numbers: pure functions from batch and clock to metric values.

Each key is declared in trimaran/telemetry/metrics.py, which says what it means.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from trimaran.config import RunConfig
from trimaran.telemetry.metrics import (
    LAG_MAX,
    LENGTH_MEAN,
    PHASE_SECONDS,
    REWARD_MEAN,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
)
from trimaran.types import (
    Completion,
    Faulted,
    Proof,
    ProofLevel,
    Score,
    ScoredGroup,
    TrainingBatch,
    Verdict,
)

PART_MARK = "."
"""In "term.part"; no term's own name holds it."""


def describe_batch(batch: TrainingBatch) -> dict[str, float]:
    """The numbers that follow from the batch alone.

    Example: describe_batch(batch)["reward/completion/mean"]  # 0.25
    """
    # An episode that could not be ended has no tokens.
    completions = [c for scored in batch.groups for c in scored.group.completions_G if not c.fault]
    verdicts = [verdict for scored in batch.groups for verdict in scored.verdicts_G]
    rewards_by_group = [_scored_rewards(scored) for scored in batch.groups]
    rewards = [reward for group in rewards_by_group for reward in group]
    spreads = [float(np.std(group)) for group in rewards_by_group if group]
    lags = [
        batch.step - 1 - min(segment.version.step for segment in completion.all_segments)
        for completion in completions
        if completion.all_segments
    ]
    lengths = [completion.num_sampled for completion in completions]
    prompts = [len(scored.group.prompt_token_ids) for scored in batch.groups]
    num_truncated = sum(completion.is_cut_off for completion in completions)
    return {
        REWARD_MEAN: fmean(rewards) if rewards else 0.0,
        "reward/completion/min": min(rewards, default=0.0),
        "reward/completion/max": max(rewards, default=0.0),
        "reward/completion/std": float(np.std(rewards)) if rewards else 0.0,
        "reward/completion/faulted/share": count_faulted(batch) / len(verdicts),
        "reward/completion/indigestible/share": count_indigestible(batch) / len(verdicts),
        "reward/group/std": fmean(spreads) if spreads else 0.0,
        "reward/group/equal/share": fmean(len(set(group)) < 2 for group in rewards_by_group),
        LENGTH_MEAN: fmean(lengths),
        "rollout/completion/length/min": min(lengths),
        "rollout/completion/length/max": max(lengths),
        "rollout/prompt/length/mean": fmean(prompts),
        "rollout/prompt/length/min": min(prompts),
        "rollout/prompt/length/max": max(prompts),
        "rollout/completion/truncated/share": num_truncated / len(completions),
        "rollout/completion/lag/mean": fmean(lags) if lags else 0.0,
        LAG_MAX: max(lags, default=0),
        **describe_episodes([completion for completion in completions if completion.turns]),
        **describe_terms(verdicts),
    }


def describe_episodes(episodes: Sequence[Completion]) -> dict[str, float]:
    """What happened between the policy and its environments; nothing for answers of one turn."""
    if not episodes:
        return {}
    turns = [turn for episode in episodes for turn in episode.turns]
    lengths = [len(episode.turns) for episode in episodes]
    num_calls = sum(turn.num_calls for turn in turns)
    values = {
        "environment/turns/mean": fmean(lengths),
        "environment/turns/max": float(max(lengths)),
        "environment/given_tokens/mean": sum(turn.num_given for turn in turns) / len(episodes),
        "environment/seconds/mean": sum(turn.seconds for turn in turns) / len(episodes),
        "environment/calls/mean": num_calls / len(episodes),
    }
    if num_before := sum(turn.num_before for turn in turns):
        num_cached = sum(turn.num_cached for turn in turns)
        values["environment/prefix/cached/share"] = num_cached / num_before
    if num_calls:
        num_failures = sum(turn.num_failures for turn in turns)
        values["environment/calls/failed/share"] = num_failures / num_calls
    return values


def describe_proofs(batch: TrainingBatch, proofs: Sequence[Proof]) -> dict[str, float]:
    """Completion tokens of the batch by the level of their proofs: one for each level, also for none.

    Example: describe_proofs(batch, proofs)["weight_sync/proof/tokens/loaded"]  # 4096.0
    """
    levels = {(proof.version, proof.replica): proof.level for proof in proofs}
    counts = Counter[ProofLevel]()
    for scored in batch.groups:
        for completion in scored.group.completions_G:
            for segment in completion.all_segments:
                if level := levels.get((segment.version, segment.replica)):
                    counts[level] += segment.end - segment.start
    return {f"weight_sync/proof/tokens/{level}": float(counts[level]) for level in ProofLevel}


def describe_terms(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Each term and part, unweighted, over the completions where it was judged, also those that
    another term left faulted. One that does not apply to a completion does not count there."""
    judged: defaultdict[str, list[float]] = defaultdict(list)
    num_faulted: defaultdict[str, int] = defaultdict(int)
    for verdict in verdicts:
        for name, value in verdict.terms.items():
            judged[name].append(value)
        for name in verdict.faulted_terms if isinstance(verdict, Faulted) else ():
            num_faulted[name] += 1
    values: dict[str, float] = {}
    for name, known in judged.items():
        key = f"reward/term/{name}"
        values |= {f"{key}/mean": fmean(known), f"{key}/min": min(known), f"{key}/max": max(known)}
    for name in sorted(judged.keys() | num_faulted):
        if PART_MARK not in name:
            share = num_faulted[name] / (len(judged[name]) + num_faulted[name])
            values[f"reward/term/{name}/faulted/share"] = share
    return values


def count_tokens(batch: TrainingBatch) -> int:
    """Prompt and completion tokens of every sample, as peers count them, and of every further sequence of an
    episode."""
    return sum(
        len(scored.group.prompt_token_ids) + len(sequence.token_ids_T)
        for scored in batch.groups
        for completion in scored.group.completions_G
        for sequence in (completion, *completion.branches)
    )


def count_samples(batch: TrainingBatch) -> int:
    return sum(len(scored.group.completions_G) for scored in batch.groups)


def count_faulted(batch: TrainingBatch) -> int:
    return sum(isinstance(v, Faulted) for scored in batch.groups for v in scored.verdicts_G)


def count_indigestible(batch: TrainingBatch) -> int:
    return sum(
        isinstance(v, Score) and v.indigestible
        for scored in batch.groups
        for v in scored.verdicts_G
    )


def describe_pace(
    batch: TrainingBatch, seconds: float, phases: Mapping[str, float], config: RunConfig
) -> dict[str, float]:
    """`phases`: wall seconds of the step in which anybody was at each activity."""
    tokens_per_second = count_tokens(batch) / seconds
    return {
        STEP_SECONDS: seconds,
        TOKENS_PER_SECOND: tokens_per_second,
        "controller/step/tokens_per_second_per_device": tokens_per_second / config.num_devices,
        "controller/step/samples_per_second": count_samples(batch) / seconds,
        **{PHASE_SECONDS.format(name): value for name, value in phases.items()},
    }


def _scored_rewards(scored: ScoredGroup) -> list[float]:
    return [verdict.reward for verdict in scored.verdicts_G if isinstance(verdict, Score)]
