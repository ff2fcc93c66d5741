"""Rules on form and length, with the semantics of MindSpeed-RL, verl and EasyR1."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reward.rules import formats
from tests.reward.rules.calling import judge, score
from trimaran.rewards import Sample

RIGHT = r"<think>a</think><answer>\boxed{7}</answer>"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (RIGHT, 1),
        (RIGHT + "\n", -0.5),
        (RIGHT.replace("a", "<think>"), -0.5),
        (RIGHT.replace("{7}", "{7} \\boxed{8}"), -0.5),
        (RIGHT.replace("\\boxed{7}", "7"), -0.5),
        (RIGHT.replace("{7}", "{\n7}"), -0.5),
        (r"<think>\boxed{7}</think><answer>7</answer>", -0.5),
        ("<think>\\boxed{7}</think><answer>\\boxed{\n7}</answer>", -0.5),
        ("<think>\\boxed{\n</think><answer>\\boxed{7}</answer>", 1),
        (r"<answer>\boxed{7}</answer><think>a</think>", -0.5),
        ("", -0.5),
    ],
)
def test_strict_format(text: str, value: float) -> None:
    assert score("strict_format", text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("Step 1: a", 1 / 3),
        ("1. a\n2. b", 1 / 3),  # as there: a number counts at the very start alone
        ("First, a. Next, b", 2 / 3),
        ("\n- a\n* b\n- c\n- d", 1),
    ],
)
def test_step(text: str, value: float) -> None:
    assert score("step", text) == value


@pytest.mark.parametrize(
    ("num_tokens", "value"), [(0, 0), (80, 0), (85, -0.25), (100, -1), (120, -1)]
)
def test_overlong(num_tokens: int, value: float) -> None:
    sample = Sample(text="", answer="", token_ids=(1,) * num_tokens)
    assert judge("overlong", sample, max_tokens=100, buffer=20) == value
    assert judge("overlong", sample, max_tokens=100) == value


def patterns_of_the_projects() -> list[tuple[object, str, str, int]]:
    dot, line = re.DOTALL, re.DOTALL | re.MULTILINE
    return [
        (formats.is_boxed_thought, "fullmatch", r"<think>.*</think>.*\\boxed\{.*\}.*", dot),
        (
            formats.is_boxed_answer,
            "fullmatch",
            r"<think>.*</think>.*<answer>.*\\boxed\{.*\}.*</answer>",
            dot,
        ),
        (
            formats.is_think_answer,
            "fullmatch",
            r"<think>.*?</think>\s*<answer>.*?</answer>",
            dot,
        ),
        (
            lambda text: score("format", text) == 1,
            "match",
            r"^<think>.*?</think>\s*<answer>.*?</answer>$",
            line,
        ),
    ]


@given(
    st.lists(
        st.sampled_from(
            ["<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "}", " ", "\n", "7", "{"]
        ),
        max_size=14,
    ).map("".join)
    | st.lists(st.sampled_from(["", " ", "\n", "7", "</think>", "\\boxed{7}"]), min_size=4).map(
        lambda s: f"<think>{s[0]}</think>{s[1]}<answer>{s[2]}\\boxed{{7}}</answer>{s[3]}"
    )
)
def test_the_searches_say_what_the_patterns_of_the_projects_say(text: str) -> None:
    for ours, method, pattern, flags in patterns_of_the_projects():
        assert ours(text) == (getattr(re.compile(pattern, flags), method)(text) is not None)  # type: ignore[operator]
