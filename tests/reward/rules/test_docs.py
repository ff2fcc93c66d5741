"""The examples of docs/reward-rules.md are run as they stand there; docs/rewards.md lists every rule."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.reward.rules import ALIASES, RULES
from tests.reward.rules.calling import judge
from trimaran.rewards import ReferenceUnusableError, Sample

DOCS = Path(__file__).parents[3] / "docs"
HEADING = "## Every rule by example"
ELSEWHERE = {"code"}
"""Shown in sections of their own."""


@dataclass(frozen=True)
class Example:
    rule: str
    options: dict[str, Any]
    completion: str
    reference: str
    score: str


def read_examples() -> list[Example]:
    """The lines of the block under the heading."""
    text = (DOCS / "reward-rules.md").read_text(encoding="utf-8")
    block = text.split(f"\n{HEADING}\n")[1].split("```\n")[1]
    rows = [json.loads(line) for line in block.splitlines()]
    return [
        Example(rule, options, text, answer, str(score))
        for rule, options, text, answer, score in rows
    ]


def run(example: Example) -> str:
    words = example.completion.split()  # there a word counts as a token
    sample = Sample(example.completion, example.reference, token_ids=tuple(range(len(words))))
    try:
        judgement = judge(example.rule, sample, **example.options)
    except ReferenceUnusableError:
        return "faulted"
    value = judgement["score"] if isinstance(judgement, Mapping) else judgement
    return f"{value:.3g}"


def test_every_example_is_what_happens() -> None:
    wrong = [
        (example, result)
        for example in read_examples()
        if (result := run(example)) != example.score
    ]
    assert not wrong


@pytest.mark.parametrize("rule", sorted(set(RULES) - ELSEWHERE))
def test_every_rule_is_shown_right_and_wrong(rule: str) -> None:
    scores = [example.score for example in read_examples() if example.rule == rule]
    numbers = {float(score) for score in scores if score != "faulted"}
    assert max(numbers) == RULES[rule].bounds({})[1]
    assert min(numbers) < max(numbers)


def test_the_guide_lists_every_rule_and_alias() -> None:
    guide = (DOCS / "rewards.md").read_text(encoding="utf-8")
    section = guide.split("\n## Built-in rules\n")[1].split("\n## ")[0]
    rows = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert rows == set(RULES)
    (aliases,) = re.findall(r"^Aliases: .*$", section, re.MULTILINE)
    assert all(f"`{name}`" in aliases for name in {*ALIASES, *ALIASES.values()})
