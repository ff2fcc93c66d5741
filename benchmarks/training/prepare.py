"""From a step's groups, as they arrive, to the tensors of one rank of eight."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.results_file import Row
from benchmarks.training.work import (
    MODEL,
    count_tokens,
    interleave,
    make_batch,
    make_config,
    our_step,
)
from trimaran.config import RunConfig
from trimaran.types import Completion, ScoredGroup
from trimaran.wire.packed import Logprobs, TokenIds

if TYPE_CHECKING:
    from services.trainer.step.updates import Update

GROUPS, GROUP_SIZE, PROMPT = 64, 16, 512
SHORTEST, LONGEST, QUICK_LONGEST = 500, 8192, 1000
ROUNDS = 5
RANKS = 8
STEP_PROMPT, STEP_LENGTHS = 512, [[256] * 4] * 2
"""Of a step that fits everywhere: 3,072 packed tokens. Longer answers take more for each token."""
SHARE_GOAL = 0.02


def measure_prepare(work: Path, quick: bool) -> tuple[list[Row], str]:
    import torch

    torch.set_num_threads(1)
    longest, dice = QUICK_LONGEST if quick else LONGEST, random.Random(5)
    lengths = [[dice.randint(SHORTEST, longest) for _ in range(GROUP_SIZE)] for _ in range(GROUPS)]
    config = make_config(GROUPS, data_parallel=RANKS, micro_batch_tokens=16384)
    groups = [
        replace(
            scored,
            group=replace(
                scored.group, completions_G=tuple(map(_as_bytes, scored.group.completions_G))
            ),
        )
        for scored in make_batch(PROMPT, lengths).groups
    ]
    seconds: list[float] = []
    update = _prepare(groups, config)  # warms up
    for _ in range(ROUNDS):
        start = time.perf_counter()
        _prepare(groups, config)
        seconds.append(time.perf_counter() - start)
    packed = sum(len(batch.token_ids_N) for batch in update.pack(torch.device("cpu")))
    share = median(seconds) / (packed * _seconds_a_token())
    rows = [
        Row("seconds", median(seconds), "s", None, False),
        Row("share_of_step", share, "share", SHARE_GOAL, False),
        Row("trained_tokens", update.step.num_tokens, "tokens", None, True),
        Row("micro_batches_of_a_rank", len(update.micro_batches), "micro-batches", None, False),
    ]
    return rows, (
        f"{GROUPS} x {GROUP_SIZE} answers of {SHORTEST} to {longest} tokens behind prompts of {PROMPT},"
        f" {RANKS} data-parallel ranks, one thread; median of {ROUNDS}. Share: of a rank's {packed:,} packed"
        f" tokens in a step of {MODEL.name}, at the seconds a token of a step of {STEP_PROMPT} +"
        f" {STEP_LENGTHS[0][0]} tokens on one thread, bf16"
    )


def _prepare(groups: Sequence[ScoredGroup], config: RunConfig) -> Update:
    """As `train_step` does before the first pass, with every completion computed."""
    import torch

    from services.trainer.step.batch import StepBatch
    from services.trainer.step.finite import find_input_faults
    from services.trainer.step.objective import token_weights
    from services.trainer.step.updates import plan_updates
    from services.trainer.step.values import early_advantages

    step = StepBatch.of(groups, mask_truncated=False)
    logprobs_M, advantages_M = step.rollout_logprobs(), early_advantages(step, config)
    computed = frozenset(range(len(step.completions_B)))
    faults = find_input_faults(step, computed, logprobs_M, advantages_M)
    (update,) = plan_updates(step, computed, faults, config, 1, 0, 1e-4, lambda group: 0.0)
    token_weights(step, update, config.algorithm, torch.device("cpu"))
    update.pack(torch.device("cpu"))
    return update


def _seconds_a_token() -> float:
    """Of one data-parallel rank's step, for each packed token."""
    batch = make_batch(STEP_PROMPT, STEP_LENGTHS)
    step = our_step(make_config(len(STEP_LENGTHS), threads=1), batch)
    return interleave({"step": step}, 3)["step"] / count_tokens(batch)[1]


def _as_bytes(completion: Completion) -> Completion:
    """As it comes off the wire."""
    return replace(
        completion,
        token_ids_T=TokenIds(np.asarray(completion.token_ids_T, "<i4").tobytes()),
        logprobs_S=Logprobs(np.asarray(completion.logprobs_S, "<f4").tobytes()),
    )
