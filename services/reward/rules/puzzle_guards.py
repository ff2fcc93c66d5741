"""Keeps what a model wrote from being run: some tasks of reasoning-gym 0.1 evaluate the answer.

Four of them give it to `eval`, five to sympy's parser, which evaluates it with Python's builtins
in reach. An answer that could be more than a list or an expression counts as wrong.

And one is fooled by an answer that is no number: it looks as near to every number as can be.
"""

from __future__ import annotations

import ast
import re
import sys

EVALUATES_LISTS = ("string_insertion", "spiral_matrix", "binary_matrix", "n_queens")
PARSES_EXPRESSIONS = (
    "countdown",
    "puzzle24",
    "polynomial_multiplication",
    "simple_integration",
    "intermediate_integration",
)

MEASURES_DISTANCE = ("complex_arithmetic",)

_WORD = re.compile(r"[^\W\d_]{2,}")
_FUNCTION = re.compile(
    "a?(sin|cos|tan|cot|sec|csc)h?|exp|log|ln|sqrt|cbrt|[Aa]bs|sign|pi|Rational|Integer|Float|Pow"
    "|Add|Mul|factorial|gamma|erf[ci]?|Ei|Si|Ci|li"
)


def disarm(task: str, module: str) -> None:
    """`module` is that of the task. Where it evaluates a list, a literal will do."""
    if task in EVALUATES_LISTS:
        vars(sys.modules[module])["eval"] = ast.literal_eval


def is_safe(task: str, answer: str | None) -> bool:
    """False where the task would parse what is no expression of numbers, one-letter names,
    operators and functions of mathematics, or would take a NaN for right."""
    if answer is not None and task in MEASURES_DISTANCE:
        return "nan" not in answer.replace(" ", "").lower()
    if answer is None or task not in PARSES_EXPRESSIONS:
        return True
    if "_" in answer or not re.fullmatch(r"[\w\s+\-*/^(),.!]*", answer):
        return False
    if re.search(r"\.\s*[^\W\d]|[^\W\d]\s*\.", answer):  # attributes
        return False
    return all(map(_FUNCTION.fullmatch, _WORD.findall(answer)))
