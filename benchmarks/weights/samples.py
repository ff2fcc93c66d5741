"""Scored groups that the initial policy made itself, with plain transformers: one epoch of them.

Axes: G completions of a group, T tokens of one, L positions, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from services.reward.rules.numbers import last_integer
from trimaran.rewards import Sample
from trimaran.types import (
    Completion,
    Group,
    Message,
    Prompt,
    Score,
    ScoredGroup,
    Segment,
    TrainingBatch,
    VersionId,
)

PROMPTS = Path(__file__).parents[2] / "examples" / "addition" / "train.jsonl"
GROUP_SIZE, MAX_TOKENS = 8, 24
GROUPS_AT_A_TIME = 8


def make_batches(model: Path, num_steps: int, groups_per_step: int) -> list[TrainingBatch]:
    """Step n's batch is the n-th slice of the addition prompts, answered and scored."""
    rows = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    wanted = num_steps * groups_per_step
    if wanted > len(rows):
        raise ValueError(f"{wanted} prompts are wanted; {PROMPTS} has {len(rows)}")
    prompts = [
        Prompt(str(number), (Message("user", row["prompt"]),), "addition", row["answer"])
        for number, row in enumerate(rows[:wanted])
    ]
    groups: list[ScoredGroup] = []
    sampler = _Sampler(model)
    for start in range(0, wanted, GROUPS_AT_A_TIME):
        groups += sampler.answer(prompts[start : start + GROUPS_AT_A_TIME])
    return [
        TrainingBatch(step, tuple(groups[(step - 1) * groups_per_step : step * groups_per_step]))
        for step in range(1, num_steps + 1)
    ]


class _Sampler:
    def __init__(self, model: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.manual_seed(1)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model, padding_side="left")
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)

    @torch.no_grad()
    def answer(self, prompts: Sequence[Prompt]) -> list[ScoredGroup]:
        chats = [[{"role": "user", "content": p.messages[0].text}] for p in prompts]
        inputs = self._tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
        )
        made = self._model.generate(
            **inputs,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=GROUP_SIZE,
            max_new_tokens=MAX_TOKENS,
            return_dict_in_generate=True,
            output_logits=True,
        )
        prompt_tokens = inputs["input_ids"].shape[1]
        tokens_BT = made.sequences[:, prompt_tokens:]
        logprobs_BTV = torch.stack(made.logits, 1).float().log_softmax(-1)
        logprobs_BT = logprobs_BTV.gather(-1, tokens_BT[..., None])[..., 0]
        groups = []
        for place, prompt in enumerate(prompts):
            asked = inputs["input_ids"][place][inputs["attention_mask"][place].bool()]
            rows = range(place * GROUP_SIZE, (place + 1) * GROUP_SIZE)
            completions = tuple(self._completion(tokens_BT[i], logprobs_BT[i]) for i in rows)
            group = Group(int(prompt.prompt_id), 1, prompt, tuple(asked.tolist()), completions)
            scores = tuple(
                Score(last_integer(Sample(c.text, prompt.answer))["score"]) for c in completions
            )
            groups.append(ScoredGroup(group, scores))
        return groups

    def _completion(self, tokens_T: torch.Tensor, logprobs_T: torch.Tensor) -> Completion:
        token_ids, end = tokens_T.tolist(), self._model.generation_config.eos_token_id
        stopped = end in token_ids
        length = token_ids.index(end) + 1 if stopped else len(token_ids)
        return Completion(
            tuple(token_ids[:length]),
            tuple(logprobs_T[:length].tolist()),
            self._tokenizer.decode(token_ids[:length], skip_special_tokens=True),
            "stop" if stopped else "length",
            (Segment(0, length, VersionId(0, 0), "sampler"),),
        )
