"""(c) One training step of our Megatron backend against plain transformers on the same tokens.

Plain transformers: bf16 weights, the padded batch (here without padding, as all lengths are
equal) in halves, logits for completion positions only, the same loss, fused AdamW. Ours does the
same step on fp32 main weights, which is more work. Both in one process, interleaved.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.results_file import Row
from trimaran.config import RunConfig, parse_config
from trimaran.types import (
    Completion,
    Group,
    Prompt,
    Score,
    ScoredGroup,
    Segment,
    TrainingBatch,
    VersionId,
)

GROUPS, GROUP_SIZE, PROMPT_TOKENS, COMPLETION_TOKENS = 8, 8, 38, 24
THREADS = 2
HALVES = 2


def measure_trainer(model: Path, work: Path, rounds: int) -> tuple[list[Row], str]:
    import torch

    from services.trainer.backend import build_policy
    from services.trainer.learner import train_step
    from trimaran.device import pick

    config = _config(model)
    policy = build_policy(config, None, pick("cpu"), 0)
    batch = make_batch()
    plain_step = _plain_step(model, batch)
    sides: dict[str, Callable[[], Any]] = {
        "ours": lambda: train_step(policy, batch, config),
        "transformers": plain_step,
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side, step in sides.items():
            start = time.perf_counter()
            step()
            if number:  # the first warms up
                seconds[side].append(time.perf_counter() - start)
                print(f"round {number} {side}: {seconds[side][-1]:.2f} s", flush=True)
    tokens = GROUPS * GROUP_SIZE * (PROMPT_TOKENS + COMPLETION_TOKENS)
    rate = {side: tokens / statistics.median(values) for side, values in seconds.items()}
    rows = [
        Row(
            "trainer_tokens_per_second_against_transformers",
            rate["ours"] / rate["transformers"],
            "ratio",
            1.0,
            True,
        ),
        *(
            Row(f"trainer_tokens_per_second_{side}", rate[side], "tokens/s", None, True)
            for side in sides
        ),
    ]
    torch.distributed.destroy_process_group()
    return rows, (
        f"{rounds} interleaved steps of {GROUPS * GROUP_SIZE} sequences of {PROMPT_TOKENS} +"
        f" {COMPLETION_TOKENS} tokens, {THREADS} threads, bf16"
    )


def make_batch() -> TrainingBatch:
    """Random tokens; rewards differ within each group, so that every token is computed."""
    chooser = random.Random(1)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(chooser.randrange(5, 49000) for _ in range(count))

    segments = (Segment(0, COMPLETION_TOKENS, VersionId(0, 0), "rollout-0"),)

    def completion() -> Completion:
        logprobs = (-10.0,) * COMPLETION_TOKENS
        return Completion(tokens(COMPLETION_TOKENS), logprobs, "", "length", segments)

    def group(number: int) -> ScoredGroup:
        completions = tuple(completion() for _ in range(GROUP_SIZE))
        prompt = Prompt(str(number), (), "bench", "")
        scores = tuple(Score(float(index % 2)) for index in range(GROUP_SIZE))
        return ScoredGroup(Group(number, 1, prompt, tokens(PROMPT_TOKENS), completions), scores)

    return TrainingBatch(1, tuple(group(number) for number in range(GROUPS)))


def _config(model: Path) -> RunConfig:
    return parse_config(
        {
            "model": {"path": str(model)},
            "data": {"train": "unused"},
            "reward": {"rules": {"last_integer": 1.0}},
            "trainer": {"threads": THREADS, "learning_rate": 1e-6, "device": "cpu"},
            "rollout": {"max_tokens": 24, "max_prompt_tokens": 72},
        }
    )


def _plain_step(path: Path, batch: TrainingBatch) -> Callable[[], None]:
    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), fused=True)
    rows = [
        (*scored.group.prompt_token_ids, *completion.token_ids_T)
        for scored in batch.groups
        for completion in scored.group.completions_G
    ]
    token_ids = torch.tensor(rows)
    advantages = torch.tensor([1.0, -1.0]).repeat(len(rows) // 2)

    def step() -> None:
        for part in torch.arange(len(rows)).chunk(HALVES):
            logits = model(input_ids=token_ids[part], logits_to_keep=COMPLETION_TOKENS + 1).logits
            targets = token_ids[part, -COMPLETION_TOKENS:]
            logprobs = -F.cross_entropy(
                logits[:, :-1].float().flatten(0, 1), targets.flatten(), reduction="none"
            )
            weights = advantages[part, None].expand_as(targets).flatten()
            (-(logprobs * weights).sum() / (len(rows) * COMPLETION_TOKENS)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
