"""(c) One training step of our Megatron backend against plain transformers on the same tokens.

Plain transformers: bf16 weights, the padded batch (here without padding, as all lengths are
equal) in halves, logits for completion positions only, the same loss, fused AdamW. Ours does the
same step on fp32 main weights, which is more work. Both in one process, interleaved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results_file import Row
from benchmarks.training import work as batches
from benchmarks.training.work import interleave
from trimaran.config import RunConfig, parse_config
from trimaran.types import TrainingBatch

THREADS = 2
HALVES = 2


@dataclass(frozen=True, slots=True)
class Work:
    """One step: groups of completions of a prompt, in tokens. `Work(groups=8, group_size=8)`"""

    groups: int = 8
    group_size: int = 8
    prompt_tokens: int = 38
    completion_tokens: int = 24
    vocabulary: int = 49000

    @property
    def num_sequences(self) -> int:
        return self.groups * self.group_size

    @property
    def sequence_tokens(self) -> int:
        """Prompts counted once a sequence."""
        return self.num_sequences * (self.prompt_tokens + self.completion_tokens)


WORK = Work()


def measure_trainer(model: Path, work: Path, rounds: int) -> tuple[list[Row], str]:
    import torch

    from services.trainer.backend import build_policy
    from services.trainer.step.learner import train_step
    from trimaran.host.device import pick

    config = _config(model)
    policy = build_policy(config, None, pick("cpu"), 0)
    batch = make_batch(WORK)
    plain_step = make_plain_step(model, batch, WORK.num_sequences // HALVES)
    sides: dict[str, Callable[[], Any]] = {
        "ours": lambda: train_step(policy, batch, config),
        "transformers": plain_step,
    }
    rate = measure_rates(sides, WORK, rounds)
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
        f"{rounds} interleaved steps of {WORK.num_sequences} sequences of {WORK.prompt_tokens} +"
        f" {WORK.completion_tokens} tokens, {THREADS} threads, bf16"
    )


def measure_rates(
    sides: Mapping[str, Callable[[], object]], work: Work, rounds: int
) -> dict[str, float]:
    """Tokens a second of each side's step, at the median of interleaved rounds."""
    seconds = interleave(sides, rounds)
    return {side: work.sequence_tokens / seconds[side] for side in sides}


def make_batch(work: Work) -> TrainingBatch:
    """Random tokens; rewards differ within each group, so that every token is computed."""
    lengths = [[work.completion_tokens] * work.group_size] * work.groups
    return batches.make_batch(work.prompt_tokens, lengths, work.vocabulary)


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


def make_plain_step(
    path: Path, batch: TrainingBatch, sequences_per_pass: int, device: str = "cpu"
) -> Callable[[], None]:
    """Forward, backward and AdamW of plain transformers on the same sequences."""
    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), fused=True)
    rows = [
        (*scored.group.prompt_token_ids, *completion.token_ids_T)
        for scored in batch.groups
        for completion in scored.group.completions_G
    ]
    length = len(batch.groups[0].group.completions_G[0].token_ids_T)
    token_ids = torch.tensor(rows, device=device)
    advantages = torch.tensor([1.0, -1.0], device=device).repeat(len(rows) // 2)

    def step() -> None:
        for part in torch.arange(len(rows)).split(sequences_per_pass):
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
        if device != "cpu":
            torch.cuda.synchronize()

    return step
