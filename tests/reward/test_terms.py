"""From the section `reward` to terms, and what is refused on the way."""

from __future__ import annotations

import math
from typing import Any

import pytest

from services.reward.terms import FunctionSpec, PluginSpec, Term, check_row, make_terms
from tests.configs import configure
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Prompt

ALLOWED = Allowed.from_entries(["my.rewards:*", "https://rewards.example"])
FUNCTION = {"function": "my.rewards:f"}
PLUGIN = {"plugin": {"url": "https://rewards.example/v1"}}


def config(**rules: Any) -> RunConfig:
    data = {"train": "t.jsonl", "answer_key": "solution"}
    return configure(data=data, rollout={"max_tokens": 300}, reward={"rules": rules})


def terms(**rules: Any) -> list[Term]:
    return list(make_terms(config(**rules), ALLOWED))


def test_a_weight_alone_names_a_rule() -> None:
    (term,) = terms(exact_match=0.5)
    assert (term.name, term.weight, term.minimum, term.maximum) == ("exact_match", 0.5, 0, 1)
    assert isinstance(term.spec, FunctionSpec) and term.spec.options == {}


def test_a_function_and_a_plugin() -> None:
    options = {"options": {"words": [1]}, "weight": -1, "minimum": -1, "maximum": 2}
    mine, far = terms(mine=FUNCTION | options, far=PLUGIN | options)
    assert mine.spec == FunctionSpec("my.rewards:f", '{"words": [1]}', "solution")
    assert isinstance(far.spec, PluginSpec) and far.spec.options_json == '{"words": [1]}'
    assert (mine.minimum, mine.maximum, mine.worst, far.worst) == (-1, 2, 2, 2)
    (term,) = terms(mine=FUNCTION)
    assert (term.minimum, term.maximum, term.worst) == (0, math.inf, 0)


def test_max_tokens_is_the_runs_own() -> None:
    (term,) = terms(overlong={"options": {"buffer": 100}})
    assert isinstance(term.spec, FunctionSpec)
    assert term.spec.options == {"buffer": 100, "max_tokens": 300}
    (term,) = terms(overlong={"options": {"buffer": 100, "max_tokens": 200}})
    assert isinstance(term.spec, FunctionSpec) and term.spec.options["max_tokens"] == 200


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"exact_mach": 1}, r"reward\.rules\.exact_mach: unknown rule; did you mean exact_match\?"),
        ({"mine.py:f": 1}, r"reward\.rules\.mine\.py:f: a term's name is letters.*function:"),
        ({"overlong": {"options": {"buffer": 301}}}, "buffer 301 is more than max_tokens 300"),
        ({"exact_match": {"minimum": -1}}, "a built-in rule knows its minimum and maximum"),
        ({"x": {"function": "other:f"}}, r"rules\.x\.function: other:f is not among"),
        ({"x": {"function": "my.rewards"}}, r"rules\.x\.function: 'my\.rewards': a function is"),
        ({"x": {"plugin": {"url": "http://evil"}}}, r"rules\.x\.plugin\.url: http://evil:80 is"),
        ({"x": FUNCTION | {"minimum": 1, "maximum": 1}}, "minimum 1 must be less than maximum 1"),
        ({"x": FUNCTION | {"weight": -1}}, r"rules\.x\.maximum: missing; a negative weight needs"),
    ],
)
def test_what_is_refused(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        terms(**rules)


def row(answer: str, **extras: str) -> Prompt:
    return Prompt("train.jsonl:1", (Message("user", "?"),), "t", answer, extras)


def test_the_own_timeout_of_a_rule_acts_before_the_pools() -> None:
    (term,) = terms(code=1)
    assert isinstance(term.spec, FunctionSpec)
    assert term.spec.options == {"timeout": 8.0}
    with pytest.raises(
        InputError, match=r"code\.options\.timeout: must be less than reward\.timeout"
    ):
        terms(code={"options": {"timeout": 10}})


def test_a_row_that_a_rule_cannot_use() -> None:
    rules = config(last_integer=1, mine=FUNCTION)
    check_row(rules, row("7"), "train.jsonl:1")
    with pytest.raises(InputError, match=r"train\.jsonl:2: reward\.rules\.last_integer cannot use"):
        check_row(rules, row("seven"), "train.jsonl:2")
    check_row(config(mine=FUNCTION, far=PLUGIN), row(""), "train.jsonl:3")


def test_a_rule_for_some_tasks_judges_their_rows_alone() -> None:
    data = {"train": [{"path": "a", "task": "sums"}, {"path": "b", "task": "prose"}]}
    rules = configure(data=data, reward={"rules": {"last_integer": {"tasks": ["sums"]}}})
    (term,) = make_terms(rules, Allowed())
    assert term.tasks == ("sums",)
    check_row(rules, Prompt("a:1", (Message("user", "?"),), "sums", "7"), "a:1")
    with pytest.raises(InputError, match="last_integer cannot use this row"):
        check_row(rules, Prompt("a:1", (Message("user", "?"),), "sums", "seven"), "a:1")
    with pytest.raises(InputError, match=r"b:1: none of reward.rules is for the task 'prose'"):
        check_row(rules, Prompt("b:1", (Message("user", "?"),), "prose", "seven"), "b:1")
