"""The table of rules, and what it refuses at submission."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

from services.reward.rules import RULES, find_rule
from trimaran.errors import InputError


@pytest.mark.parametrize("name", RULES)
def test_the_table_says_what_the_function_takes(name: str) -> None:
    rule = RULES[name]
    module, function = rule.target.split(":")
    _sample, *parameters = inspect.signature(
        getattr(importlib.import_module(module), function)
    ).parameters.values()
    assert {parameter.name for parameter in parameters} == {*rule.options}
    minimum, maximum = rule.bounds({})
    assert minimum < maximum


def test_the_table_imports_no_checker() -> None:
    probe = (
        "import sys, services.reward.rules;"
        "print(sorted({'sympy', 'math_verify', 'mathruler', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", probe], text=True) == "[]\n"


def test_an_unknown_rule_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"reward\.rules\.last_int: .*did you mean last_integer"):
        find_rule("last_int", "reward.rules.last_int")


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("last_integer", {"method": "strict"}, r"key\.method: unknown option .*takes none"),
        ("gsm8k", {"method": "loose"}, r"key\.method: 'loose'"),
        ("gsm8k", {"mode": "strict"}, r"key\.mode: unknown option \(known: method\)"),
        ("math", {"library": ["mathruler"]}, r"library: \['mathruler'\].*it takes math-verify"),
        ("math", {"format_weight": 1.5}, r"key\.format_weight: 1\.5"),
        ("math", {"format_weight": True}, r"key\.format_weight: True"),
        ("overlong", {"buffer": 0}, r"key\.buffer: 0"),
        ("overlong", {"buffer": 2.5}, r"key\.buffer: 2\.5"),
        ("dapo", {"buffer": 9, "max_tokens": 8}, "key: buffer 9 is more than max_tokens 8"),
        ("dapo", {"factor": float("inf")}, r"key\.factor: inf"),
        ("numeric_match", {"absolute": -1}, r"key\.absolute: -1"),
        ("regular_expression", {"pattern": "("}, r"key\.pattern: '\('"),
        ("multiple_choice", {"choices": "A"}, r"key\.choices: 'A'"),
        ("code", {"timeout": "3"}, r"key\.timeout: '3'"),
    ],
)
def test_a_wrong_option_is_refused(rule: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RULES[rule].check_options(options, "key")


def test_the_bounds_follow_the_options() -> None:
    assert RULES["dapo"].bounds({}) == (-2, 1)
    assert RULES["dapo"].bounds({"factor": 0.5}) == (-1.5, 1)
