"""What the plain processes call: the libraries as their own documentation calls them."""

from __future__ import annotations

import logging

from math_verify import parse, verify
from mathruler.grader import extract_boxed_content, grade_answer

# It warns for every answer that its limits are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def math_verify(text: str, answer: str) -> bool:
    gold = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)  # pyright: ignore
    return verify(gold, parse(text, parsing_timeout=None), timeout_seconds=None)  # pyright: ignore


def mathruler(text: str, answer: str) -> bool:
    return grade_answer(extract_boxed_content(text), answer)
