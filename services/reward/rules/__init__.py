"""The table of built-in rules. docs/rewards.md shows each with right, wrong and unscored."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from services.reward.rules import numbers
from services.reward.rules.registry import Rule, nonempty_reference
from trimaran.errors import InputError

_HERE = "services.reward.rules"

RULES: Mapping[str, Rule] = {
    "last_integer": Rule(f"{_HERE}.numbers:last_integer", check_reference=numbers.check_integer),
    "final_answer": Rule(f"{_HERE}.numbers:final_answer", check_reference=numbers.check_number),
    "boxed_match": Rule(f"{_HERE}.numbers:boxed_match", check_reference=nonempty_reference),
    "exact_match": Rule(f"{_HERE}.numbers:exact_match"),
}


def find_rule(name: str, key: str) -> Rule:
    """Raises InputError that names the key and the nearest known rule."""
    if name not in RULES:
        near = difflib.get_close_matches(name, RULES, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"{key}: unknown rule{hint} (known: {', '.join(RULES)})")
    return RULES[name]
