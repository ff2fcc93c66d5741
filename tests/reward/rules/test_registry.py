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
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "[]\n", done.stderr


def test_an_unknown_rule_is_answered_with_the_nearest() -> None:
    assert find_rule("last_integer", "reward.rules.last_integer") is RULES["last_integer"]
    with pytest.raises(InputError, match=r"reward\.rules\.last_int: .*did you mean last_integer"):
        find_rule("last_int", "reward.rules.last_int")
    with pytest.raises(InputError, match="did you mean math_17k_acc"):
        find_rule("math_17k", "key")


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("last_integer", {"method": "strict"}, r"key\.method: unknown option .*takes none"),
        ("gsm8k", {"method": "loose"}, r"key\.method: 'loose'"),
        ("gsm8k", {"mode": "strict"}, r"key\.mode: unknown option \(known: method\)"),
        (
            "math",
            {"library": "sympy"},
            r"library: 'sympy' .* \(it takes math-verify, mathruler",
        ),
        ("math", {"library": ["mathruler"]}, r"library: \['mathruler'\]"),
        ("math", {"format_weight": 1.5}, r"key\.format_weight: 1\.5"),
        ("math", {"format_weight": True}, r"key\.format_weight: True"),
        ("overlong", {"buffer": 0}, r"key\.buffer: 0"),
        ("overlong", {"buffer": 2.5}, r"key\.buffer: 2\.5"),
        ("overlong", {"buffer": 9, "max_tokens": 8}, "key: buffer 9 is more than max_tokens 8"),
        ("dapo", {"buffer": 9, "max_tokens": 8}, "key: buffer 9 is more than max_tokens 8"),
        ("numeric_match", {"absolute": -1}, r"key\.absolute: -1"),
        ("numeric_match", {"absolute": "1"}, r"key\.absolute: '1'"),
        ("regular_expression", {"pattern": "("}, r"key\.pattern: '\('"),
        ("regular_expression", {"mode": "match"}, r"key\.mode: 'match'"),
        ("multiple_choice", {"choices": "A"}, r"key\.choices: 'A'"),
        ("dapo", {"factor": float("inf")}, r"key\.factor: inf"),
    ],
)
def test_a_wrong_option_is_refused(rule: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RULES[rule].check_options(options, "key")


def test_the_bounds_follow_the_options() -> None:
    assert RULES["dapo"].bounds({}) == (-2, 1)
    assert RULES["dapo"].bounds({"factor": 0.5}) == (-1.5, 1)
    assert RULES["overlong"].bounds({}) == (-1, 0)
