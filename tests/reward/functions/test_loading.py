"""Functions in the shapes of each project, written for these tests, loaded from files."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reward.functions.arguments import Reading, verl
from services.reward.functions.loading import LoadedFunction, load_function
from services.reward.functions.returned import FunctionFault
from services.reward.outcome import NotApplicable, Value
from services.reward.terms import FunctionSpec
from trimaran.errors import InputError
from trimaran.rewards import Sample
from trimaran.types import Message, ToolCall

Load = Callable[..., LoadedFunction]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """load(code, name="f", answer_key="answer", **options)"""
    count = 0

    def load(
        code: str, name: str = "f", answer_key: str = "answer", **options: Any
    ) -> LoadedFunction:
        nonlocal count
        count += 1
        path = tmp_path / f"mine{count}.py"
        path.write_text(textwrap.dedent(code))
        return load_function(FunctionSpec(f"{path}:{name}", json.dumps(options), answer_key))

    return load


def sample(text: str = "four", answer: str = "4", **changes: Any) -> Sample:
    messages = (Message("system", "Be brief."), Message("user", "What is 2 + 2?"))
    return Sample(text, answer, messages=messages, **changes)


def values(loaded: LoadedFunction, *samples: Sample) -> list[float | None]:
    return [
        outcome.value if isinstance(outcome, Value) else None
        for outcome in loaded.judge_batch(samples)
    ]


# Ours


@pytest.mark.parametrize(
    ("head", "one_by_one"),
    [
        ("def f(sample)", True),
        ("def f(s: 'Sample')", True),
        ("async def f(sample)", True),
        ("def f(samples)", False),
        ("def f(group: 'list[Sample]')", False),
    ],
)
@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
def test_ours(load: Load, head: str, one_by_one: bool, future: str) -> None:
    name = re.split(r"[():]", head)[1]
    body = f"len({name}.text)" if one_by_one else f"[len(one.text) for one in {name}]"
    loaded = load(f"{future}\nfrom trimaran.rewards import Sample\n{head}: return {body}")
    assert (loaded.one_by_one, loaded.splittable) == (one_by_one, one_by_one)
    assert values(loaded, sample("a"), sample("abc")) == [1, 3]


def test_options_are_keyword_arguments_of_their_own_each_time(load: Load) -> None:
    code = "def f(sample, *, words, least=1):\n    words.append(1)\n    return len(words) - least"
    loaded = load(code, words=["a"], least=0)
    assert values(loaded, sample(), sample()) == [2, 2]


# verl


def test_verl_with_a_dict_and_the_columns_that_are_named_as_there(load: Load) -> None:
    loaded = load(
        """
        async def f(data_source, solution_str, ground_truth, extra_info, bonus=0.0, **kwargs):
            other = {"acc": data_source == "gsm8k", "pred": solution_str, "nothing": None}
            return {"score": extra_info["index"] + bonus, **other}
        """,
        bonus=0.5,
    )
    extras = {"data_source": "gsm8k", "extra_info": '{"index": 7}'}
    (outcome,) = loaded.judge_batch([sample(extras=extras)])
    assert outcome == Value(7.5, {"acc": 1.0}, prediction="four")


def test_verl_in_batches(load: Load) -> None:
    batch = load(
        """
        def f(data_sources, solution_strs, ground_truths, extra_infos, weight):
            pairs = zip(solution_strs, ground_truths, strict=True)
            return [{"score": weight * (text == truth)} for text, truth in pairs]
        """,
        weight=2,
    )
    assert not batch.one_by_one and batch.splittable
    assert values(batch, sample("4"), sample("5")) == [2, 0]


# TRL


@pytest.mark.parametrize(
    "head",
    [
        "def f(completions)",
        "def f(prompts, completions, completion_ids, trainer_state, log_extra, log_metric)",
        "async def f(completions, **kwargs)",
        "def f(completions: list[str], trainer_state=None)",
    ],
)
def test_trl_with_any_of_its_arguments(load: Load, head: str) -> None:
    loaded = load(f"{head}:\n    return [float(text == 'four') for text in completions]")
    assert not loaded.one_by_one and loaded.splittable
    assert values(loaded, sample("four"), sample("five")) == [1, 0]


def test_trl_columns(load: Load) -> None:
    loaded = load(
        """
        def f(prompts, completions, completion_ids, ground_truth, answer, level, **columns):
            assert prompts == ["What is 2 + 2?"] * 2
            assert completion_ids == [[1, 2], [3]]
            assert ground_truth == answer == ["4", "5"]
            assert level == [3, None]
            columns.pop("log_extra")("seen", completions)
            columns.pop("log_metric")("length", 2.5)
            assert columns == {"note": ["x", "y"]}, columns
            return [None, 1]
        """,
        answer_key="ground_truth",
    )
    first = sample(token_ids=(1, 2), extras={"level": "3", "note": "x"})
    second = sample(answer="5", token_ids=(3,), extras={"note": "y"})
    assert loaded.judge_batch([first, second]) == [NotApplicable(), Value(1.0, {"length": 2.5})]


def test_trl_conversations_are_an_option_or_said_by_the_annotation(load: Load) -> None:
    code = """
        def f(prompts, completions{}):
            assert prompts[0][0] == dict(role="system", content="Be brief.")
            return [float(one[0]["content"] == "four") for one in completions]
        """
    asked = load(code.format(""), conversational=True)
    said = load(code.format(": list[list[dict[str, str]]]"))
    assert values(asked, sample()) == values(said, sample()) == [1]
    with pytest.raises(InputError, match="conversational is true or false"):
        load(code.format(""), conversational="yes")


CONVERSATION = (
    Message("assistant", "I add.", tool_calls=(ToolCall("add", '{"a": 2, "b": 2}', "c0"),)),
    Message("tool", "4", call_id="c0", name="add"),
    Message("assistant", "four"),
)


def test_trl_gets_the_messages_of_an_episode(load: Load) -> None:
    seen = """
        def f(prompts, completions{}):
            call = dict(type="function", function=dict(name="add", arguments=dict(a=2, b=2)))
            called, answered, last = completions[0]
            assert called == dict(role="assistant", content="I add.", tool_calls=[call])
            assert answered == dict(role="tool", name="add", content="4")
            return [float(last["content"] == "four")]
        """
    for annotation in ("", ": list[list[dict[str, str]]]"):
        assert values(load(seen.format(annotation)), sample(conversation=CONVERSATION)) == [1]
    text = load("def f(completions: list[str]): return [float(completions[0] == 'four')]")
    assert values(text, sample(conversation=CONVERSATION)) == [1]


def test_verl_gets_an_episode_as_one_text_with_its_number_of_turns() -> None:
    arguments = verl([sample(conversation=CONVERSATION)], Reading()).arguments
    assert arguments["solution_str"] == (
        'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>\n'
        "user\n<tool_response>\n4\n</tool_response>\nassistant\nfour"
    )
    assert arguments["extra_info"]["num_turns"] == 4


def test_what_a_function_of_trl_does_not_find_here_is_its_own_fault(load: Load) -> None:
    state = load("def f(completions, trainer_state): return [trainer_state.global_step]")
    with pytest.raises(FunctionFault, match=r"trainer_state\.global_step"):
        state.judge_batch([sample()])
    with pytest.raises(FunctionFault, match="needs 'solution'"):
        load("def f(completions, solution): return [1.0]").judge_batch([sample()])


def test_a_column_of_texts_that_look_like_json(load: Load) -> None:
    code = "def f(completions, code): return [float(isinstance(one, str)) for one in code]"
    extras = {"code": '{"a": 1}'}
    assert values(load(code), sample(extras=extras)) == [0]
    assert values(load(code, text_columns=["code"]), sample(extras=extras)) == [1]
    with pytest.raises(InputError, match="text_columns is a list"):
        load(code, text_columns="code")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner | st.text()) | st.dictionaries(st.text(), inner | st.text()),
)


@given(JSON)
def test_every_value_of_a_column_comes_back(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)  # as the dataset's reader writes it
    assert Reading().columns(sample(extras={"x": text})) == {"x": value}


@given(st.text() | st.sampled_from(["007", "1e3", "1.50", '{"a":1}', "NaN", '"x"', "[" * 9999]))
def test_texts_stay_texts(text: str) -> None:
    (column,) = Reading().columns(sample(extras={"x": text})).values()
    assert column == text or json.dumps(column, ensure_ascii=False) == text


# EasyR1


def test_easyr1_sequential(load: Load) -> None:
    loaded = load(
        """
        REWARD_NAME = "mine"
        REWARD_TYPE = "sequential"
        def compute_score(given, format_weight=0.1):
            right = given["response"] == given["ground_truth"]
            assert given["response_length"] == 2
            return {"accuracy": float(right), "overall": (1 - format_weight) * right}
        """,
        "compute_score",
        format_weight=0.5,
    )
    assert loaded.one_by_one
    outcomes = loaded.judge_batch([sample("4", token_ids=(1, 2)), sample("5", token_ids=(1, 2))])
    assert outcomes == [Value(0.5, {"accuracy": 1.0}), Value(0.0, {"accuracy": 0.0})]


# What is refused at load


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("x = 1", "has no 'f'"),
        ("f = 1", "it is no function but a int"),
        ("def f(text, answer): ...", r"parameters \(text, answer\) are none"),
        ("def f(*given): ...", "are none that is known"),
        ("REWARD_TYPE = 'other'\ndef f(x): ...", "are none that is known"),
        ("f = max", "Python does not know its parameters"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_what_is_no_reward_function(load: Load, code: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        load(code)
    for project in ("trimaran.rewards", "verl's", "TRL's", "EasyR1's"):
        assert project in str(caught.value)
    assert "mine1.py" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("head", "options", "reason"),
    [
        ("def f(sample)", {"words": 1}, r"unknown option 'words' \(known: it takes none\)"),
        ("def f(sample, least)", {"leest": 1}, r"unknown option 'leest' \(known: least\)"),
        ("def f(sample, least)", {}, "needs 'least', which is not given"),
        ("def f(sample)", {"conversational": True}, "unknown option 'conversational'"),
        ("def f(completions, **k)", {"completions": []}, "unknown option 'completions'"),
    ],
)
def test_options_that_do_not_fit(
    load: Load, head: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        load(f"{head}: return 1.0", **options)


# What comes back


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("True", 1.0),
        ("numpy.array(1.5)", 1.5),
        ("None", None),
        ("{'score': 1}", 1.0),
        ("{'score': 1, 'overall': 2}", 1.0),
        ("{'score': None}", None),
    ],
)
def test_scores(load: Load, expression: str, value: float | None) -> None:
    for head, result in (("sample", expression), ("completions", f"[{expression}]")):
        loaded = load(f"import numpy\ndef f({head}): return {result}")
        assert values(loaded, sample()) == [value]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("'1.0'", "the str '1.0'; a score is a number"),
        ("{'acc': 1}", "a dict without 'score' .it has 'acc'"),
        ("10 ** 400", "OverflowError"),
        ("1j", "a complex"),
    ],
)
def test_what_is_no_score(load: Load, expression: str, reason: str) -> None:
    with pytest.raises(FunctionFault, match=reason):
        load(f"def f(sample): return {expression}").judge_batch([sample()])


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1.0", "the float 1.0; a list of 2 scores was expected"),
        ("{'score': 1}", "a dict; a list of 2"),
        ("[1, 2, 3]", "3 scores for 2 completions"),
    ],
)
def test_what_is_no_list_of_scores(load: Load, expression: str, reason: str) -> None:
    loaded = load(f"def f(completions): return {expression}")
    with pytest.raises(FunctionFault, match=reason):
        loaded.judge_batch([sample(), sample()])
