"""`python -m benchmarks.one_gpu`: a training step on one NVIDIA GPU against plain transformers.

Random bf16 models of two sizes of Qwen2.5; the same groups on both sides, interleaved. Both sides
stand in the GPU's memory at the same time. Plain transformers keeps bf16 weights and has torch's
fused AdamW; ours keeps fp32 main weights, and computes a group's prompt once.
"""

from __future__ import annotations

import gc
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.results_file import Row, write_results
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

VOCABULARY = 151936
SHAPES: dict[str, dict[str, int]] = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    | {"num_attention_heads": 14, "num_key_value_heads": 2},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
    | {"num_attention_heads": 12, "num_key_value_heads": 2},
}
"""Qwen2.5's, with tied embeddings."""
ROUNDS = 5
PLAIN_ROWS = 16
"""Sequences of one forward pass of plain transformers: 6,144 tokens."""


@dataclass(frozen=True, slots=True)
class Work:
    """Of one step: groups of completions of a prompt, in tokens."""

    groups: int = 8
    group_size: int = 8
    prompt_tokens: int = 128
    completion_tokens: int = 256

    @property
    def sequence_tokens(self) -> int:
        return self.groups * self.group_size * (self.prompt_tokens + self.completion_tokens)


def measure(size: str, work: Work, folder: Path) -> list[Row]:
    from services.trainer.backend import build_policy
    from services.trainer.learner import train_step
    from trimaran.device import pick

    _write_model(folder, size)
    config, batch = _config(folder, work), _make_batch(work)
    policy = build_policy(config, None, pick("cuda"), 0)
    sides: dict[str, Callable[[], Any]] = {
        "ours": lambda: train_step(policy, batch, config),
        "transformers": _plain_step(folder, batch, work),
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(ROUNDS + 1):
        for side, step in sides.items():
            start = time.perf_counter()
            step()
            torch.cuda.synchronize()
            if number:  # the first warms up
                seconds[side].append(time.perf_counter() - start)
    rates = {side: work.sequence_tokens / statistics.median(seconds[side]) for side in sides}
    ratio = rates["ours"] / rates["transformers"]
    _leave()
    return [
        Row(f"step_against_transformers_{size}", ratio, "ratio", 1.0, True),
        *(
            Row(f"tokens_per_second_{side}_{size}", rate, "tokens/s", None, True)
            for side, rate in rates.items()
        ),
    ]


def _leave() -> None:
    """The next size begins anew."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
    gc.collect()
    torch.cuda.empty_cache()


def _write_model(folder: Path, size: str) -> None:
    import transformers

    shape: dict[str, Any] = {**SHAPES[size], "vocab_size": VOCABULARY}
    config: Any = transformers.Qwen2Config(**shape, tie_word_embeddings=True, eos_token_id=1)
    with torch.device("cuda"):
        model: Any = transformers.Qwen2ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)


def _config(folder: Path, work: Work) -> RunConfig:
    return parse_config(
        {
            "model": {"path": str(folder)},
            "data": {"train": "unused"},
            "reward": {"rules": {"last_integer": 1.0}},
            "trainer": {"device": "cuda", "micro_batch_tokens": 8192, "learning_rate": 1e-6},
            "rollout": {"max_tokens": work.completion_tokens}
            | {"max_prompt_tokens": work.prompt_tokens},
        }
    )


def _make_batch(work: Work) -> TrainingBatch:
    """Random tokens; rewards differ within each group, so that every token is computed."""
    chooser = random.Random(1)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(chooser.randrange(5, VOCABULARY) for _ in range(count))

    length = work.completion_tokens
    segments = (Segment(0, length, VersionId(0, 0), "rollout-0"),)

    def group(number: int) -> ScoredGroup:
        completions = tuple(
            Completion(tokens(length), (-10.0,) * length, "", "length", segments)
            for _ in range(work.group_size)
        )
        scores = tuple(Score(float(index % 2)) for index in range(work.group_size))
        prompt = Prompt(str(number), (), "bench", "")
        return ScoredGroup(
            Group(number, 1, prompt, tokens(work.prompt_tokens), completions), scores
        )

    return TrainingBatch(1, tuple(group(number) for number in range(work.groups)))


def _plain_step(folder: Path, batch: TrainingBatch, work: Work) -> Callable[[], None]:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), fused=True)
    rows = [
        (*scored.group.prompt_token_ids, *completion.token_ids_T)
        for scored in batch.groups
        for completion in scored.group.completions_G
    ]
    token_ids = torch.tensor(rows).cuda()
    advantages = torch.tensor([1.0, -1.0]).repeat(len(rows) // 2).cuda()
    length = work.completion_tokens

    def step() -> None:
        for part in torch.arange(len(rows)).split(PLAIN_ROWS):
            logits = model(input_ids=token_ids[part], logits_to_keep=length + 1).logits
            targets = token_ids[part, -length:]
            logprobs = -F.cross_entropy(
                logits[:, :-1].float().flatten(0, 1), targets.flatten(), reduction="none"
            )
            weights = advantages[part, None].expand_as(targets).flatten()
            (-(logprobs * weights).sum() / (len(rows) * length)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    work = Work()
    rows: list[Row] = []
    for size in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(size, work, Path(folder))
    method = (
        f"medians of {ROUNDS} interleaved steps of {work.groups} x {work.group_size} sequences of"
        f" {work.prompt_tokens} + {work.completion_tokens} tokens in bf16 on one"
        f" {torch.cuda.get_device_name()}, torch {torch.__version__}"
    )
    write_results("one_gpu", rows, method)
    for row in rows:
        print(f"{row.name:44} {row.value:12.2f} {row.unit}")


if __name__ == "__main__":
    main()
