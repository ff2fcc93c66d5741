"""A batch whose answers are 50 to 2,000 tokens long: padding costs the other side, cutting ours."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.results_file import Row
from benchmarks.training.work import (
    MODEL,
    THREADS,
    count_tokens,
    interleave,
    make_batch,
    make_config,
    our_step,
    plain_step,
)

GROUPS, GROUP_SIZE, PROMPT = 2, 8, 128
SHORTEST, LONGEST = 50, 2000
ROUNDS, QUICK_ROUNDS = 3, 1


def measure_long_tail(work: Path, quick: bool) -> tuple[list[Row], str]:
    import torch

    torch.set_num_threads(THREADS)
    dice = random.Random(3)
    span = LONGEST / SHORTEST
    lengths = [
        [round(SHORTEST * span ** dice.random()) for _ in range(GROUP_SIZE)] for _ in range(GROUPS)
    ]
    batch = make_batch(PROMPT, lengths)
    sides = {"ours": our_step(make_config(GROUPS), batch), "plain": plain_step(MODEL, batch, 4096)}
    torch.set_num_threads(THREADS)
    rounds = QUICK_ROUNDS if quick else ROUNDS
    seconds = interleave(sides, rounds)
    copied, shared = count_tokens(batch)
    rows = [
        Row("seconds_of_plain_over_ours", seconds["plain"] / seconds["ours"], "ratio", 1.0, True),
        Row("tokens_spared_by_sharing", copied / shared, "ratio", None, True),
        Row("tokens_per_second", copied / seconds["ours"], "tokens/s", None, True),
    ]
    return rows, (
        f"SmolLM2-135M, {GROUPS} x {GROUP_SIZE} answers of {SHORTEST} to {LONGEST} tokens, evenly in"
        f" their logarithm, behind prompts of {PROMPT}; {THREADS} threads, bf16; {rounds} interleaved rounds"
    )
