"""The table of built-in rules. docs/reward-rules.md shows each with right, wrong and faulted answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from services.reward.rules import choices, length, matching, minerva, numbers
from services.reward.rules.code import rule as code
from services.reward.rules.mathematics import LIBRARIES
from services.reward.rules.registry import OneOf, Options, Rule, any_reference, nonempty_reference
from services.reward.rules.texts import check_final, check_finals
from trimaran.errors import InputError, did_you_mean


def _place(target: str) -> str:
    return f"services.reward.rules.{target}"


def _number(least: float, most: float = sys.float_info.max) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    )


def _is_positive_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _least_of_dapo(options: Options) -> float:
    return -1.0 - options.get("factor", 1.0)


_Checks = Mapping[str, Callable[[Any], bool]]
_NONE: _Checks = {}
_LIBRARY = {"library": OneOf(tuple(LIBRARIES))}
_FORMAT_WEIGHT = {"format_weight": _number(0, 1)}
_LENGTH = {"max_tokens": _is_positive_integer, "buffer": _is_positive_integer}


def _mathematics(name: str, options: _Checks = _NONE, minimum: float = 0.0) -> Rule:
    return Rule(_place(f"mathematics:{name}"), minimum, 1.0, check_finals, options)


def _on_numbers(name: str, options: _Checks = _NONE) -> Rule:
    return Rule(_place(f"numbers:{name}"), 0.0, 1.0, numbers.check_number, options)


RULES: Mapping[str, Rule] = {
    # Numbers and texts.
    "last_integer": Rule(_place("numbers:last_integer"), check_reference=numbers.check_integer),
    "final_answer": _on_numbers("final_answer"),
    "numeric_match": _on_numbers("numeric_match", {"absolute": _number(0), "relative": _number(0)}),
    "exact_match": Rule(_place("matching:exact_match"), check_reference=nonempty_reference),
    "boxed_match": Rule(_place("matching:boxed_match"), check_reference=check_final),
    "multiple_choice": Rule(
        _place("choices:multiple_choice"),
        check_reference=choices.check_letter,
        options={"choices": choices.is_choices},
    ),
    "regular_expression": Rule(
        _place("matching:regular_expression"),
        check_reference=matching.check_pattern,
        options={"pattern": matching.is_pattern, "mode": OneOf(("search", "fullmatch"))},
    ),
    "overlong": Rule(
        _place("length:overlong"), -1.0, 0.0, any_reference, _LENGTH, length.check_buffer
    ),
    # Mathematics.
    "math_verify": _mathematics("math_verify"),
    "boxed_equal": _mathematics("boxed_equal", _LIBRARY),
    # verl and EasyR1.
    "gsm8k": _on_numbers("gsm8k", {"method": OneOf(("strict", "flexible"))}),
    "math": _mathematics("math", _FORMAT_WEIGHT | _LIBRARY),
    "geo3k": _mathematics("geo3k", _FORMAT_WEIGHT | _LIBRARY),
    "r1v": _mathematics("r1v", _FORMAT_WEIGHT | _LIBRARY),
    "dapo": Rule(
        _place("minerva:dapo"),
        _least_of_dapo,
        1.0,
        minerva.check_short,
        {**_LENGTH, "factor": _number(0)},
        length.check_buffer,
    ),
    # MindSpeed-RL.
    "acc": _mathematics("acc", _LIBRARY, -1.0),
    "format": Rule(_place("formats:think_answer")),
    "step": Rule(_place("formats:step")),
    "strict_format": Rule(_place("formats:strict_format"), -0.5),
    "base_acc": _mathematics("base_acc", _LIBRARY),
    "acc_for_dapo": Rule(_place("minerva:acc_for_dapo"), -1.0, 1.0, minerva.check_short),
    "math_verify_reward": _mathematics("math_verify_reward"),
    "retool_reward": Rule(
        _place("minerva:retool_reward"),
        -1.0,
        1.0,
        minerva.check_short,
        {"call_mark": lambda value: isinstance(value, str) and bool(value)},
    ),
    # Code.
    "code": Rule(_place("code.rule:code"), 0.0, 1.0, code.check_reference, code.OPTIONS),
}


ALIASES: Mapping[str, str] = {
    "mathruler": "boxed_equal",
    # MindSpeed-RL.
    "math_17k_acc": "boxed_equal",
    "acc_for_ppo": "boxed_equal",
}
"""Other names that a run may use -> the rule that they are."""


def find_rule(name: str, key: str) -> Rule:
    """Raises InputError that names the key and the nearest known rule.

    Example:
        find_rule("gsm8k", "reward.rules.gsm8k").target  # "services.reward.rules.numbers:gsm8k"
    """
    rule = RULES.get(ALIASES.get(name, name))
    if rule is None:
        known = (*RULES, *ALIASES)
        hint = did_you_mean(name, known, 0.4)
        raise InputError(f"{key}: unknown rule{hint} (known: {', '.join(known)})")
    return rule
