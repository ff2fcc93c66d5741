from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.data.recipes import (
    RECIPES,
    Draft,
    DroppedError,
    Recipe,
    find,
    mapped,
    read_row,
)
from trimaran.errors import InputError


def user(text: str) -> tuple[tuple[str, str], ...]:
    return (("user", text),)


def turn(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **more}], "answer": "1"}


@pytest.mark.parametrize(
    ("name", "row", "draft"),
    [
        (
            "gsm8k",
            {"question": "How many?", "answer": "2 * 600 = 1200\n#### 1,200"},
            Draft(user("How many?"), "1200"),
        ),
        ("math", {"problem": "P", "solution": "so \\boxed{3}"}, Draft(user("P"), "so \\boxed{3}")),
        ("math", {"problem": "P", "solution": "S", "answer": "3"}, Draft(user("P"), "3")),
        (
            "math-17k",
            {
                "prompt": [{"role": "user", "content": "Solve."}],
                "reward_model": {"ground_truth": "34", "style": "rule"},
            },
            Draft(user("Solve."), "34"),
        ),
        ("deepscaler", {"problem": "P", "answer": 142.0}, Draft(user("P"), "142")),
        ("deepscaler", {"problem": "P", "answer": 0.5}, Draft(user("P"), "0.5")),
        (
            "geo3k",
            {"problem": "<image>Find x.", "answer": "3", "images": [{"bytes": b"1"}]},
            Draft(user("<image>Find x."), "3", ({"bytes": b"1"},)),
        ),
        (
            "geo3k",
            {"question": "Is <image1> like <image2>?", "answer": "1", "image": ["a", "b"]},
            Draft(user("Is <image> like <image>?"), "1", ("a", "b")),
        ),
        (
            "geo3k",
            {"question": "A: <image1>, B: <image2>", "answer": "1", "image": "a"},
            Draft(user("A: <image>, B: (image 2)"), "1", ("a",)),
        ),
        (
            "alpaca",
            {"instruction": "Add.", "input": "1 2", "output": "3", "system": "Be brief."},
            Draft((("system", "Be brief."), ("user", "Add.\n1 2")), "3"),
        ),
        (
            "alpaca",
            {"instruction": "C", "input": "", "output": "D", "history": [["A", "B"]]},
            Draft((("user", "A"), ("assistant", "B"), ("user", "C")), "D"),
        ),
        (
            "sharegpt",
            {
                "conversations": [
                    {"from": "human", "value": "A"},
                    {"from": "gpt", "value": "B"},
                    {"from": "human", "value": "C"},
                    {"from": "gpt", "value": "D"},
                ],
                "system": "S",
            },
            Draft((("system", "S"), ("user", "A"), ("assistant", "B"), ("user", "C")), "D"),
        ),
        (
            "chat",
            {"messages": [{"role": "user", "content": "A"}], "answer": "B"},
            Draft(user("A"), "B"),
        ),
        (
            "chat",
            {
                "prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "A"}],
                "reward_model": {"ground_truth": "B"},
            },
            Draft((("system", "S"), ("user", "A")), "B"),
        ),
        (
            "chat",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "text": None},
                            {"type": "text", "text": "What"},
                            {"type": "text", "text": " is it?"},
                        ],
                    },
                    {"role": "assistant", "content": [{"type": "text", "text": "A cat"}]},
                ],
                "images": ["a.png"],
            },
            Draft(user("<image>What is it?"), "A cat", ("a.png",)),
        ),
        ("math", {"problem": "P", "answer": ["½", "0.5"]}, Draft(user("P"), '["½", "0.5"]')),
    ],
)
def test_each_recipe_reads_what_its_dataset_has(
    name: str, row: dict[str, Any], draft: Draft
) -> None:
    assert read_row(row, RECIPES[name]) == draft


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("gsm8k", {"answer": "#### 1"}, "no prompt"),
        ("gsm8k", {"question": " ", "answer": "#### 1"}, "no prompt"),
        ("gsm8k", {"question": "a", "answer": "#### "}, "no answer"),
        ("alpaca", {"instruction": "a", "output": None}, "no answer"),
        ("sharegpt", {"conversations": []}, "no prompt"),
        ("sharegpt", {"conversations": [{"from": "human", "value": "a"}]}, "no answer"),
        ("sharegpt", {"conversations": [{"from": "martian", "value": "a"}]}, "unknown role"),
        ("sharegpt", {"conversations": ["a"]}, "a turn that is no object"),
        (
            "sharegpt",
            {"conversations": [{"from": "human", "value": {"a": 1}}]},
            "a turn that is no",
        ),
        (
            "chat",
            turn([{"type": "image_url", "image_url": {"url": "a"}}]),
            "a turn with a part of the type",
        ),
        ("chat", turn([{"type": "image", "image": "a.png"}]), "a turn with a part of the type"),
        ("chat", turn(["a"]), "a turn with a part of the type"),
        ("chat", turn("a", tool_calls=[{"function": {}}]), "a turn that calls a tool"),
        ("math", {"problem": [{"role": "user"}], "answer": "1"}, "a prompt that is no text"),
        ("math", {"problem": b"1 + 1?", "answer": "2"}, "a prompt that is no text"),
        ("math", {"problem": "1 + 1?", "answer": b"2"}, "an answer that is no text"),
        ("sharegpt", {"conversations": 5}, "turns that are no list"),
        ("chat", {"messages": {"role": "user", "content": "a"}, "answer": "1"}, "no list"),
        ("alpaca", {"instruction": "a", "history": [["q"]], "output": "b"}, "no question"),
        ("alpaca", {"instruction": "a", "history": ["q"], "output": "b"}, "no question"),
        ("alpaca", {"instruction": "a", "history": "q", "output": "b"}, "turns that are no list"),
    ],
)
def test_rows_that_make_no_prompt_are_dropped_with_a_reason(
    name: str, row: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DroppedError, match=reason):
        read_row(row, RECIPES[name])


def test_a_history_that_is_missing_is_none() -> None:
    for missing in (None, [], float("nan")):
        row = {"instruction": "a", "history": missing, "output": "b"}
        assert read_row(row, RECIPES["alpaca"]).messages == (("user", "a"),)


def test_columns_are_named_by_hand() -> None:
    recipe = RECIPES["alpaca"]
    keys = mapped(recipe, ["prompt=task.0.text", "response=meta.label", "query="])
    row = {"task": [{"text": "Add."}], "input": "unused", "meta": {"label": 3}}
    assert read_row(row, Recipe(keys)) == Draft(user("Add."), "3")
    with pytest.raises(InputError, match="--map promt=x: give field=column, a field of prompt"):
        mapped(recipe, ["promt=x"])
    with pytest.raises(InputError, match="a field of messages, response, system, images"):
        mapped(RECIPES["sharegpt"], ["prompt=x"])


@given(
    st.recursive(
        st.integers() | st.text(max_size=3),
        lambda c: st.lists(c) | st.dictionaries(st.text("ab.0", max_size=3), c),
    ),
    st.text("ab.01", max_size=6),
)
def test_a_path_finds_a_value_or_nothing(values: Any, path: str) -> None:
    found = find(values, path)
    if isinstance(values, dict) and path in values:
        assert found == values[path]
