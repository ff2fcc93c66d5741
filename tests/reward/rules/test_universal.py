"""No answer is right for many references: answers drawn from a grammar of mathematics."""

from __future__ import annotations

import functools
import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from services.reward.rules import RULES
from tests.reward.rules.calling import DATA, needs_data, score

pytestmark = pytest.mark.e2e

NUM_REFERENCES = 100
MOST = 2
"""References that one answer may be right for: MATH has 11 and 11\\%."""
SECONDS = 1.0
"""Of processor time for one answer and all references. What takes longer is the pool's affair."""

NEED_NO_REFERENCE = {"overlong", "format", "step", "strict_format"}
ELSEWHERE = {"code"}
OPTIONS: dict[str, dict[str, Any]] = {
    "dapo": {"max_tokens": 8},
    "regular_expression": {"mode": "fullmatch"},
}
EVERY_RULE = sorted(set(RULES) - NEED_NO_REFERENCE - ELSEWHERE)
OF_NUMBERS = {"last_integer", "final_answer", "numeric_match", "gsm8k"}

# oo, zoo and nan are how sympy, which mathruler hands the text to, spells them.
ATOMS = st.sampled_from(
    [
        *("0", "1", "2", "3", "10", "0.5", "x", "e", "i", r"\pi", r"25\%", r"\emptyset", ""),
        *(r"\infty", r"-\infty", r"\frac{1}{0}", r"\frac{0}{0}", "0^0", "f(x)"),
        *(r"\operatorname{foo}(x)", r"\mathbb{R}", r"\text{a}", "oo", "zoo", "nan"),
    ]
)
FORMS = [
    *("{0}^{{{1}}}", r"\frac{{{0}}}{{{1}}}", "{0}+{1}", "{0}-{1}", r"{0}\cdot {1}", "{0}{1}"),
    *("({0})({1})", "({0})!", "|{0}|", r"\sqrt{{{0}}}", r"\sin({0})", r"\log_{{{0}}}({1})"),
    *(r"\ln({0})", r"e^{{{0}}}", r"\lim_{{x\to {0}}} {1}", "f({0})", "{0}/{1}", "({0})^({1})"),
    *("{0}**{1}", "-{0}", r"\lfloor {0}\rfloor", r"\arctan({0})"),
]
WHOLE = [
    *("{0}", "({0},{1})", "({0},{1}]", "[{0},{1}]", r"\{{{0},{1}\}}", r"\{{{0}\}}", "{0},{1}"),
    *("x={0}", "x>{0}", "{0}={1}", "{0}<{1}", r"{0}\pm {1}", "{0})({1}", "{0}{1}"),
    *(r"\begin{{pmatrix}}{0}\\{1}\end{{pmatrix}}", r"\mathbb{{R}}\setminus\{{{0}\}}"),
    r"({0},{1})\cup ({1},{0})",
]


def filled(forms: list[str], parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda form, a, b: form.format(a, b), st.sampled_from(forms), parts, parts)


EXPRESSIONS = st.recursive(ATOMS, lambda parts: filled(FORMS, parts), max_leaves=5)
ANSWERS = filled(WHOLE, EXPRESSIONS)


class TooLongError(BaseException):
    """The libraries catch every Exception."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Of this process' own time, so that a busy machine changes nothing."""

    def stop(number: int, frame: object) -> None:
        raise TooLongError

    previous = signal.signal(signal.SIGVTALRM, stop)
    # Again and again: what is raised in a callback of the garbage collector is lost.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.1)
    try:
        yield
    except TooLongError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


@functools.cache
def references() -> list[str]:
    """Numbers, and everything else that is an answer in MATH: intervals, tuples, matrices, texts."""
    gsm8k = (DATA / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    math = (DATA / "math" / "math500.jsonl").read_text(encoding="utf-8").splitlines()
    numbers = [json.loads(line)["answer"].rpartition("#### ")[2] for line in gsm8k]
    others = [json.loads(line)["answer"] for line in math]
    others = [answer for answer in others if not re.fullmatch(r"-?[0-9]+", answer)]
    half = NUM_REFERENCES // 2
    some = [*dict.fromkeys(others)]
    return [*dict.fromkeys(numbers)][:half] + some[:: len(some) // half][:half]


def usable(rule: str, references: list[str]) -> list[str]:
    """In the form that the rule wants, and no two the same to it."""
    if rule == "multiple_choice":
        return list("ABCDE")
    if rule == "regular_expression":
        return [re.escape(reference) for reference in references]
    if rule in OF_NUMBERS:
        numbers = [reference for reference in references if re.fullmatch("-?[0-9]+", reference)]
        return list({int(number): number for number in numbers}.values())
    return references


def text_of(rule: str, answer: str) -> str:
    ways = {
        "exact_match": answer,
        "regular_expression": answer,
        "multiple_choice": f"The answer is ({answer})",
        "acc_for_dapo": f"Answer: {answer}",
        "dapo": f"Answer: {answer}",
        "r1v": f"<think></think><answer>{answer}</answer>",
        "final_answer": f"#### {answer}",
        "gsm8k": f"#### {answer}",
    }
    return ways.get(rule, rf"<think></think><answer>\boxed{{{answer}}}</answer>")


def right_for(rule: str, options: dict[str, Any], answer: str) -> list[str]:
    """References with the greatest value, format included."""
    greatest = RULES[rule].bounds(options)[1]
    text, right = text_of(rule, answer), []
    with at_most(SECONDS):
        for reference in usable(rule, references()):
            if score(rule, text, reference, **options) >= greatest:
                right.append(reference)
    return right


@needs_data
@pytest.mark.parametrize("rule", EVERY_RULE)
@settings(max_examples=5, deadline=None)
@given(ANSWERS)
def test_no_answer_is_right_for_many_references(rule: str, answer: str) -> None:
    assert len(right_for(rule, OPTIONS.get(rule, {}), answer)) <= MOST


@needs_data
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(ANSWERS)
@example(r"(0,\infty)\cup (\infty,0)")
def test_a_credulous_library_finds_no_answer_right_for_many(library: str, answer: str) -> None:
    assert len(right_for("acc", {"library": library}, answer)) <= MOST


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        (r"\infty", r"\infty", 1),
        (r"\infty+1", r"\infty", 0),
        (r"(-\infty, 3.0]", r"(-\infty, 3]", 1),
        (r"(-\infty, \infty)", r"(-\infty, 3]", 0),
        (r"\mathbb{R} \setminus \{3\}", r"(-\infty, 3) \cup (3, \infty)", 1),
        (r"\sum_{n=1}^{10} n", "55", 1),
        (r"\lfloor \log_{2}(8) \rfloor", "3", 1),
        ("4^{500}", "2^{1000}", 1),
        (r"(10^{40}+\sqrt{2})-10^{40}", r"\sqrt{2}", 1),
    ],
)
def test_what_is_infinite_equals_only_itself(answer: str, reference: str, right: float) -> None:
    assert score("math_verify", f"\\boxed{{{answer}}}", reference) == right
