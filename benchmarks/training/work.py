"""What all parts share: batches of given lengths, our step, plain transformers' step, interleaving."""

from __future__ import annotations

import random
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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

MODEL = Path("models/SmolLM2-135M-Instruct")
SHAPES: dict[str, dict[str, Any]] = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    | {"num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
    | {"num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936},
}
"""Qwen2.5's, with tied embeddings."""
THREADS = 2
Step = Callable[[], Any]


def make_batch(
    prompt_tokens: int, lengths: Sequence[Sequence[int]], vocabulary: int = 49000
) -> TrainingBatch:
    """Random tokens. `lengths`: of each group its completions'. Rewards differ within each group, so
    that every token is computed."""
    chooser = random.Random(1)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(chooser.randrange(5, vocabulary) for _ in range(count))

    def completion(length: int) -> Completion:
        segments = (Segment(0, length, VersionId(0, 0), "rollout-0"),)
        return Completion(tokens(length), (-10.0,) * length, "", "length", segments)

    def group(number: int) -> ScoredGroup:
        completions = tuple(map(completion, lengths[number]))
        scores = tuple(Score(float(index % 2)) for index in range(len(completions)))
        prompt = Prompt(str(number), (), "bench", "")
        made = Group(number, 1, prompt, tokens(prompt_tokens), completions)
        return ScoredGroup(made, scores)

    return TrainingBatch(1, tuple(map(group, range(len(lengths)))))


def write_model(folder: Path, shape: Mapping[str, Any], device: str = "cpu") -> Path:
    """With random weights in bf16, and SmolLM2's tokenizer."""
    import torch
    import transformers

    config = transformers.Qwen2Config(**shape, tie_word_embeddings=True, eos_token_id=1)
    with torch.device(device):
        model: Any = transformers.Qwen2ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    shutil.copy(MODEL / "tokenizer.json", folder)
    return folder


def make_config(num_groups: int, model: Path = MODEL, **trainer: Any) -> RunConfig:
    section = {"threads": THREADS, "learning_rate": 1e-6, "device": "cpu", **trainer}
    return parse_config(
        {
            "run": {"groups_per_step": num_groups},
            "model": {"path": str(model)},
            "data": {"train": "unused"},
            "reward": {"rules": {"last_integer": 1.0}},
            "trainer": section,
            "rollout": {"max_tokens": 2048, "max_prompt_tokens": 4096},
        }
    )


def our_step(config: RunConfig, batch: TrainingBatch) -> Step:
    from services.trainer.backend import build_policy
    from services.trainer.step.learner import train_step
    from trimaran.host.device import pick

    policy = build_policy(config, None, pick("cpu"), 0)
    return lambda: train_step(policy, batch, config)


def plain_step(path: Path, batch: TrainingBatch, pass_tokens: int) -> Step:
    """Forward, backward and fused AdamW of plain transformers in bf16, each completion with its own
    copy of the prompt, padded on the right in passes of like length and at most `pass_tokens`."""
    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), fused=True)
    rows = [
        (scored.group.prompt_token_ids, completion.token_ids_T)
        for scored in batch.groups
        for completion in scored.group.completions_G
    ]
    num_trained = sum(len(answer) for _, answer in rows)
    passes = [_padded(part) for part in _split(rows, pass_tokens)]

    def step() -> None:
        for token_ids, answered, longest in passes:
            logits = model(input_ids=token_ids, logits_to_keep=longest + 1).logits[:, :-1]
            targets, counted = token_ids[:, -longest:], answered[:, -longest:]
            losses = F.cross_entropy(logits[counted].float(), targets[counted], reduction="sum")
            (losses / num_trained).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _split(rows: list[Any], pass_tokens: int) -> list[list[Any]]:
    rows = sorted(rows, key=lambda row: -len(row[0]) - len(row[1]))
    parts: list[list[Any]] = []
    for row in rows:
        widest = sum(map(len, parts[-1][0])) if parts else 0
        if not parts or (len(parts[-1]) + 1) * widest > pass_tokens:
            parts.append([])
        parts[-1].append(row)
    return parts


def _padded(rows: list[Any]) -> tuple[Any, Any, int]:
    """Token ids and which of them are answers, both [rows, widest], and the longest reach of answers."""
    import torch

    widest = max(len(prompt) + len(answer) for prompt, answer in rows)
    token_ids = torch.zeros(len(rows), widest, dtype=torch.int64)
    answered = torch.zeros(len(rows), widest, dtype=torch.bool)
    for place, (prompt, answer) in enumerate(rows):
        whole = torch.tensor([*prompt, *answer])
        token_ids[place, : len(whole)] = whole
        answered[place, len(prompt) : len(whole)] = True
    return token_ids, answered, widest - min(len(prompt) for prompt, _ in rows)


def interleave(sides: Mapping[str, Step], rounds: int) -> dict[str, float]:
    """Median seconds of each side's step; one more round before them warms up."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side, step in sides.items():
            start = time.perf_counter()
            step()
            if number:
                seconds[side].append(time.perf_counter() - start)
                print(f"round {number} {side}: {seconds[side][-1]:.2f} s", flush=True)
    return {side: statistics.median(found) for side, found in seconds.items()}


def count_tokens(batch: TrainingBatch) -> tuple[int, int]:
    """With a copy of the prompt for each completion, and with one for each group."""
    copied = shared = 0
    for scored in batch.groups:
        prompt = len(scored.group.prompt_token_ids)
        answers = [len(one.token_ids_T) for one in scored.group.completions_G]
        copied += sum(prompt + answer for answer in answers)
        shared += prompt + sum(answers)
    return copied, shared
