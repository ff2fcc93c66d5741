"""Rows in the forms of other frameworks: verl's Parquet, parts, a prefill, tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from services.reward.functions.arguments import Reading, verl
from services.rollout.chat import ChatTokenizer
from tests.data.pictures import png, size_of
from tests.data.test_prompts import SIZES, dataset, write_jsonl
from tests.tiny_model import tiny_tokenizer
from trimaran.clients import GroupAssembly
from trimaran.errors import InputError
from trimaran.rewards import Sample
from trimaran.types import Caller, Message, Prompt, ToolCall, split_prefill
from trimaran.v1 import rollout_pb2
from trimaran.wire import messages as wire

CARROTS = "How many carrots?"


def verl_row(question: str, solution: str, index: int) -> dict[str, Any]:
    """As verl's script for GSM8K writes one."""
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{question} Answer behind ####."}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": solution.rpartition("#### ")[2]},
        "extra_info": {"split": "train", "index": index, "answer": solution, "question": question},
    }


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_verls_own_file_needs_no_key(tmp_path: Path) -> None:
    row = verl_row("2 + 3?", "2 + 3 = 5\n#### 5", 0)
    path = write_parquet(tmp_path / "train.parquet", [row])
    (prompt,) = dataset(path).texts()
    assert prompt.messages == (Message("user", "2 + 3? Answer behind ####."),)
    assert (prompt.answer, prompt.task) == ("5", "default")
    (named,) = dataset(path, answer_key="reward_model.ground_truth", task_key="data_source").texts()
    assert (named.answer, named.task) == ("5", "openai/gsm8k")
    (other,) = dataset(
        path, prompt_key="extra_info.question", answer_key="extra_info.index"
    ).texts()
    assert (other.messages, other.answer) == ((Message("user", "2 + 3?"),), "0")
    arguments = verl([judged(prompt, "so 5")], Reading()).arguments
    assert (arguments["data_source"], arguments["ground_truth"]) == ("openai/gsm8k", "5")
    assert arguments["extra_info"].items() >= row["extra_info"].items()


def judged(prompt: Prompt, answer: str) -> Sample:
    """As the reward service has the one answer of a group."""
    assembly = GroupAssembly(1)
    finished = rollout_pb2.Finished(finish_reason="stop", text=answer)
    assembly.take(rollout_pb2.GenerateResponse(finished=[finished]))
    group = assembly.group(0, 1, prompt)
    caller = wire.encode_caller(Caller("run", 1))
    (sample,) = wire.decode_samples(wire.encode_score_request(caller, group))
    return sample


def test_an_answer_goes_on_from_the_assistants_last_message(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content | trim + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {{ opening }}{% endif %}"
    )
    tokenizer.add_tokens(["<think>"])
    tokenizer.save_pretrained(tmp_path / "model")

    def rendered(prefill: str, **kwargs: str) -> str:
        chat = ChatTokenizer(tmp_path / "model", template_kwargs=kwargs)
        messages = (Message("user", "1 + 2?"), Message("assistant", prefill))
        return chat.show(chat.tokenize(messages))

    assert rendered("It is ") == "user: 1 + 2?\nassistant: It is "
    assert rendered("3", opening="x") == "user: 1 + 2?\nassistant: x3"
    # What a template of a thinking model writes itself is not written twice.
    assert rendered("<think>1", opening="<think>\n") == "user: 1 + 2?\nassistant: <think>1"


def test_a_prefill_is_the_beginning_of_the_text_that_is_judged(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "1 + 2?"}, {"role": "assistant", "content": "It is "}]
    rows = [{"prompt": turns, "answer": "3"}, {"prompt": turns[1:], "answer": "3"}]
    loaded = dataset(write_jsonl(tmp_path / "a.jsonl", rows))
    prompt = loaded[0]
    assert prompt.question == "1 + 2?"
    sample = judged(prompt, "3")
    assert (sample.text, sample.prompt) == ("It is 3", "1 + 2?")
    with pytest.raises(InputError, match="a.jsonl:2: 'prompt' has no message before the assist"):
        loaded[1]


def test_content_is_read_from_parts(tmp_path: Path) -> None:
    def row(*parts: dict[str, Any], **columns: Any) -> dict[str, Any]:
        return {"prompt": [{"role": "user", "content": list(parts)}], "answer": "2", **columns}

    image, text = {"type": "image"}, {"type": "text", "text": CARROTS}
    rows = [row(text, image, text, image, images=[png(28, 56), png(56, 28)]), row(text)]
    path = write_parquet(tmp_path / "a.parquet", rows)
    loaded = dataset(path, SIZES, image_key="images")
    (message,) = loaded[0].messages
    assert message.text == f"{CARROTS}<image>{CARROTS}<image>"
    assert [size_of(one) for one in message.images] == [(28, 56), (56, 28)]
    assert loaded[1].messages == (Message("user", CARROTS),)
    alone = write_jsonl(tmp_path / "b.jsonl", [row(image, text)])
    with pytest.raises(InputError, match="b.jsonl:1: <image> stands .* set data.image_key "):
        dataset(alone)[0]
    sound = row({"type": "input_audio", "input_audio": {}})
    with pytest.raises(InputError, match="a.jsonl:1: a message of 'prompt' has a part of the type"):
        dataset(write_jsonl(tmp_path / "a.jsonl", [sound]))[0]


SCHEMA = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c0", "function": {"name": "add", "arguments": '{"a": 1}'}}],
}
ANSWER = {"role": "tool", "content": "3", "tool_call_id": "c0", "name": "add"}
ASKED = {"role": "user", "content": "1 + 2?"}


@pytest.mark.parametrize("form", ["list", "text", "function alone", "parquet"])
def test_a_rows_tools_and_its_conversation_with_them_are_read(tmp_path: Path, form: str) -> None:
    other: dict[str, Any] = {"role": "assistant", "content": "I add.", "reasoning_content": "Easy."}
    other["tool_calls"] = [{"function": {"name": "add", "arguments": {"a": 1}}}]
    parameters = {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}}
    now = {"type": "function", "function": {"name": "now", "parameters": parameters}}
    tools: Any = [SCHEMA, now]
    if form != "list":
        tools = json.dumps(tools) if form == "text" else tools
    if form == "function alone":
        tools = [one["function"] for one in tools]
    row = {"prompt": [ASKED, CALL, ANSWER, other, ANSWER], "answer": "3", "tools": tools}
    if form == "parquet":  # one form of arguments in a column
        row["prompt"] = [ASKED, other, ANSWER]
        path = write_parquet(tmp_path / "a.parquet", [row])
    else:
        path = write_jsonl(tmp_path / "a.jsonl", [row])
    (prompt,) = dataset(path).texts()
    first, second = prompt.tools
    assert (first.name, first.description) == ("add", "Add two numbers.")
    assert json.loads(first.parameters) == SCHEMA["function"]["parameters"]
    assert json.loads(second.parameters)["properties"] == {"zone": {"enum": ["UTC"]}}
    answer = Message("tool", "3", call_id="c0", name="add")
    calls = (ToolCall("add", '{"a": 1}'),)
    reported = Message("assistant", "I add.", tool_calls=calls, reasoning="Easy.")
    if form == "parquet":
        assert prompt.messages[1:] == (reported, answer)
    else:
        called = Message("assistant", "", tool_calls=(ToolCall("add", '{"a": 1}', "c0"),))
        assert prompt.messages[1:] == (called, answer, reported, answer)
    assert "tools" not in prompt.extras


def test_a_call_of_tools_is_no_prefill() -> None:
    called = Message("assistant", "I add.", tool_calls=(ToolCall("add", "{}"),))
    assert split_prefill((Message("user", "?"), called)) == ((Message("user", "?"), called), "")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "?", "tools": [{"name": 3}]}, "'tools' must be a list of function schemas"),
        ({"prompt": "?", "tools": "[{"}, "'tools' is a text, and not JSON"),
        ({"prompt": "?", "tools": [SCHEMA, SCHEMA]}, "'tools' has 'add' twice"),
        ({"prompt": [ASKED, CALL]}, "ends with a call that no message of a tool answers"),
        ({"prompt": [ASKED, {**ANSWER, "content": None}]}, "must be a text or a list"),
        ({"prompt": [ASKED, {**ANSWER, "tool_call_id": 3}]}, "must be a text or a list"),
        ({"prompt": [ASKED, {**CALL, "tool_calls": [{}]}, ANSWER]}, "has a call of a tool that is"),
    ],
)
def test_bad_tools_are_refused_with_row_and_reason(
    tmp_path: Path, row: dict[str, Any], reason: str
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{**row, "answer": "3"}])
    with pytest.raises(InputError, match=f"a.jsonl:1: .*{reason}"):
        dataset(path)[0]


def test_a_row_without_a_tool_in_its_column_is_a_prompt(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "?", "answer": "3", "tools": []}])
    assert dataset(path)[0].answer == "3"
