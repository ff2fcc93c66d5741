"""Reference solutions of GSM8K and MATH are right, and the number plus one is wrong.

Measured on all 7,473 and 500 rows, without exception; here on some.
"""

from __future__ import annotations

import functools
import json
import re
from decimal import Decimal
from typing import Any

import pytest

from services.reward.rules import RULES
from services.reward.rules.number_reading import last_number
from tests.reward.rules.calling import DATA, needs_data, score
from trimaran.rewards import ReferenceUnusableError

pytestmark = pytest.mark.e2e

STRIDE = 10
MATH_STRIDE = 4
WHOLE = [
    *(("last_integer", {}), ("final_answer", {}), ("numeric_match", {}), ("math_verify", {})),
    *(("gsm8k", {}), ("gsm8k", {"method": "flexible"})),
]
BOXED = [
    *(("boxed_match", {}), ("math", {"format_weight": 0}), ("acc", {})),
    *(("math", {"format_weight": 0, "library": "math-verify"}), ("acc", {"library": "mathruler"})),
]
Rows = list[tuple[str, str, str]]
"""(id, text, reference)."""


@functools.cache
def gsm8k() -> Rows:
    lines = (DATA / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    answers = [json.loads(line)["answer"] for line in lines[::STRIDE]]
    return [(str(i * STRIDE), answer, answer) for i, answer in enumerate(answers)]


@functools.cache
def math500() -> Rows:
    lines = (DATA / "math" / "math500.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines[::MATH_STRIDE]]
    return [(row["unique_id"], row["solution"], row["answer"]) for row in rows]


def plus_one(reference: str) -> str:
    number = last_number(reference)
    assert number is not None
    return str(number + 1)


def boxed(answer: str) -> str:
    return f"so it is $\\boxed{{{answer}}}$."


def judged_otherwise(rule: str, options: dict[str, Any], rows: Rows, right: bool) -> list[str]:
    found = [(i, score(rule, text, answer, **options)) for i, text, answer in rows]
    return [i for i, value in found if (value == 1) != right]


@needs_data
@pytest.mark.parametrize(("rule", "options"), WHOLE)
def test_gsm8k(rule: str, options: dict[str, Any]) -> None:
    rows = gsm8k()
    wrong = [(i, f"{s.rpartition('####')[0]}#### {plus_one(s)}", a) for i, s, a in rows]
    assert judged_otherwise(rule, options, rows, right=True) == []
    assert judged_otherwise(rule, options, wrong, right=False) == []


@needs_data
@pytest.mark.parametrize(("rule", "options"), BOXED)
def test_gsm8k_in_a_box(rule: str, options: dict[str, Any]) -> None:
    right = [(i, boxed(answer.rpartition("#### ")[2]), answer) for i, answer, _ in gsm8k()]
    wrong = [(i, boxed(plus_one(answer)), answer) for i, answer, _ in gsm8k()]
    assert judged_otherwise(rule, options, right, right=True) == []
    assert judged_otherwise(rule, options, wrong, right=False) == []


@needs_data
@pytest.mark.parametrize(("rule", "options"), [*BOXED, ("math_verify", {})])
def test_math(rule: str, options: dict[str, Any]) -> None:
    rows = math500()
    assert judged_otherwise(rule, options, rows, right=True) == []
    numeric = [row for row in rows if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", row[2])]
    assert len(numeric) > 50
    wrong = [(i, boxed(str(Decimal(answer) + 1)), answer) for i, _text, answer in numeric]
    assert judged_otherwise(rule, options, wrong, right=False) == []


@needs_data
@pytest.mark.parametrize("rule", ["final_answer", "numeric_match", "gsm8k"])
def test_a_whole_solution_of_math_is_refused_or_read_as_its_answer(rule: str) -> None:
    bare = composed = 0
    for _i, solution, answer in math500():
        if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", answer):
            bare += 1
            RULES[rule].check_reference(solution, {})
            assert score(rule, f"#### {answer}", solution) == 1
            assert score(rule, f"#### {plus_one(answer)}", solution) == 0
        elif re.search(r"frac|sqrt|pi|infty|matrix|[(\[_]", answer):
            composed += 1
            with pytest.raises(ReferenceUnusableError):
                RULES[rule].check_reference(solution, {})
    assert bare > 50
    assert composed > 25
