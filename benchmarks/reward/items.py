"""Groups to score: reference solutions, and the same with another number at the end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimaran.types import Completion, Group, Message, Prompt, Segment, VersionId

DATA = Path(__file__).parents[3] / "shared" / "data"
GROUP_SIZE = 8
INTEGER = re.compile(r"-?\d+")
CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Item:
    """A prompt with its completions; the first is the reference solution."""

    group: Group
    is_numeric: bool
    """Completion k is the reference solution with k added to its number; else all are right."""


def gsm8k(limit: int | None = None) -> list[Item]:
    """The 7,473 problems of GSM8K's training split, answers ending in "#### <number>"."""
    return [_gsm8k_item(number, row) for number, row in _rows("gsm8k/train.jsonl", limit)]


def math500(limit: int | None = None) -> list[Item]:
    r"""Completions box their answer; those that are no integer are the same eight times."""
    return [_math_item(number, row) for number, row in _rows("math/math500.jsonl", limit)]


def group_of(
    number: int, prompt_id: str, question: str, answer: str, texts: Sequence[str]
) -> Group:
    prompt = Prompt(prompt_id, (Message("user", question),), "bench", answer)
    return Group(number, 0, prompt, (1,) * 100, tuple(map(_completion, texts)))


def _gsm8k_item(number: int, row: dict[str, str]) -> Item:
    solution, _, answer = row["answer"].rpartition("#### ")
    value = int(answer.replace(",", ""))
    others = [f"{solution}#### {value + k}" for k in range(1, GROUP_SIZE)]
    texts = [row["answer"], *others]
    return Item(group_of(number, f"gsm8k:{number}", row["question"], answer, texts), True)


def _math_item(number: int, row: dict[str, str]) -> Item:
    solution, answer = row["solution"], row["answer"]
    box = f"\\boxed{{{answer}}}"
    is_numeric = bool(INTEGER.fullmatch(answer)) and box in solution
    texts = [solution] * GROUP_SIZE
    if is_numeric:
        boxes = [f"\\boxed{{{int(answer) + k}}}" for k in range(GROUP_SIZE)]
        texts = [solution.replace(box, other) for other in boxes]
    return Item(group_of(number, f"math500:{number}", row["problem"], answer, texts), is_numeric)


def _completion(text: str) -> Completion:
    """With as many tokens as such a text has."""
    length = max(1, len(text) // CHARACTERS_A_TOKEN)
    segment = Segment(0, length, VersionId(0, 1), "rollout-0")
    tokens = tuple(1000 + k % 30000 for k in range(length))
    return Completion(tokens, (-0.5,) * length, text, "stop", (segment,))


def _rows(name: str, limit: int | None) -> Iterator[tuple[int, dict[str, str]]]:
    with open(DATA / name, encoding="utf-8") as file:
        for number, line in enumerate(file):
            if limit is not None and number == limit:
                return
            yield number, json.loads(line)
