from typing import Any

import pytest

from trimaran.data.recipes import (
    RECIPES,
    Draft,
    DroppedError,
    Recipe,
    mapped,
    read_row,
)
from trimaran.errors import InputError


def user(text: str) -> tuple[tuple[str, str], ...]:
    return (("user", text),)


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


ASKED = {"role": "user", "content": "A"}
TRUTH = {"reward_model": {"ground_truth": "34", "style": "rule"}}
TALK = (("user", "A"), ("assistant", "B"), ("user", "C"))


def turn(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **more}], "answer": "1"}


@pytest.mark.parametrize(
    ("name", "row", "draft"),
    [
        ("gsm8k", {"question": "A", "answer": "600 + 600\n#### 1,200"}, Draft(user("A"), "1200")),
        ("math", {"problem": "P", "solution": "so \\boxed{3}"}, Draft(user("P"), "so \\boxed{3}")),
        ("math", {"problem": "P", "solution": "S", "answer": "3"}, Draft(user("P"), "3")),
        ("math-17k", {"prompt": [ASKED], **TRUTH}, Draft(user("A"), "34")),
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
            Draft(TALK, "D"),
        ),
        (
            "sharegpt",
            {
                "conversations": [
                    {"from": who, "value": text}
                    for who, text in (("human", "A"), ("gpt", "B"), ("human", "C"), ("gpt", "D"))
                ],
                "system": "S",
            },
            Draft((("system", "S"), *TALK), "D"),
        ),
        ("chat", turn("A"), Draft(user("A"), "1")),
        (
            "chat",
            {"prompt": [{"role": "system", "content": "S"}, ASKED], **TRUTH},
            Draft((("system", "S"), ("user", "A")), "34"),
        ),
        (
            "chat",
            turn([{"type": "image", "text": None}, text("What"), text(" is it?")])
            | {"images": ["a.png"]},
            Draft(user("<image>What is it?"), "1", ("a.png",)),
        ),
        (
            "chat",
            {"messages": [ASKED, {"role": "assistant", "content": [text("A cat")]}]},
            Draft(user("A"), "A cat"),
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
        ("sharegpt", {"conversations": [{"from": "human", "value": {}}]}, "a turn that is no"),
        ("chat", turn([{"type": "image_url", "image_url": {"url": "a"}}]), "a part of the type"),
        ("chat", turn([{"type": "image", "image": "a.png"}]), "a turn with a part of the type"),
        ("chat", turn(["a"]), "a turn with a part of the type"),
        ("chat", turn("a", tool_calls=[{"function": {}}]), "a turn that calls a tool"),
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
    row = {"task": [{"text": "Add."}], "input": "unused", "meta.label": 3, "meta": {"label": 4}}
    assert read_row(row, Recipe(keys)) == Draft(user("Add."), "3")
    with pytest.raises(InputError, match="--map promt=x: give field=column, a field of prompt"):
        mapped(recipe, ["promt=x"])
    with pytest.raises(InputError, match="a field of messages, response, system, images"):
        mapped(RECIPES["sharegpt"], ["prompt=x"])
