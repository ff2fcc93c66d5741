"""What the plain processes call: the calls of the rules of these names, and nothing around them."""

from __future__ import annotations

from mathruler.grader import extract_boxed_content

from services.reward.rules import by_math_verify, by_mathruler


def math_verify(text: str, answer: str) -> bool:
    """The parsed reference is kept here, too."""
    return by_math_verify.concludes(text, answer)


def mathruler(text: str, answer: str) -> bool:
    return by_mathruler.equal(extract_boxed_content(text), answer)
