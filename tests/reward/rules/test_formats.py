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
        (RIGHT.replace("\\boxed{7}", "7"), -0.5),
        (RIGHT.replace("{7}", "{\n7}"), -0.5),
        (r"<think>\boxed{7}</think><answer>7</answer>", -0.5),
        ("<think>\\boxed{7}</think><answer>\\boxed{\n7}</answer>", -0.5),
        ("<think>\\boxed{\n</think><answer>\\boxed{7}</answer>", 1),
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
        ("\n- a\n* b\n- c\n- d", 1),
    ],
)
def test_step(text: str, value: float) -> None:
    assert score("step", text) == value


@pytest.mark.parametrize(("num_tokens", "value"), [(80, 0), (85, -0.25), (120, -1)])
def test_overlong(num_tokens: int, value: float) -> None:
    sample = Sample(text="", answer="", token_ids=(1,) * num_tokens)
    assert judge("overlong", sample, max_tokens=100, buffer=20) == value
    assert judge("overlong", sample, max_tokens=100) == value


DOT, LINE = re.DOTALL, re.DOTALL | re.MULTILINE
THOUGHT = r"<think>.*?</think>\s*<answer>.*?</answer>"
PATTERNS = [
    (formats.is_boxed_thought, re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*\Z", DOT)),
    (
        formats.is_boxed_answer,
        re.compile(r"<think>.*</think>.*<answer>.*\\boxed\{.*\}.*</answer>\Z", DOT),
    ),
    (formats.is_think_answer, re.compile(rf"{THOUGHT}\Z", DOT)),
    (lambda text: score("format", text) == 1, re.compile(rf"^{THOUGHT}$", LINE)),
]
"""Of the projects."""


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
    for ours, pattern in PATTERNS:
        assert ours(text) == (pattern.match(text) is not None)
