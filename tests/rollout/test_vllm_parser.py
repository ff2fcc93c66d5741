"""Calls of other forms than Hermes', read by vLLM's own parsers."""

import json

import pytest

pytest.importorskip("vllm", reason="vllm is not installed; its parsers are used")

from services.rollout.turns.tool_formats import SIGNS, find_format, load_parser
from tests.rollout.chats import CHATML, LLAMA, PLAIN
from tests.tiny_model import tiny_tokenizer
from trimaran.errors import InputError
from trimaran.types import Tool, ToolCall

TOOL = Tool(
    "add",
    "Adds.",
    '{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}',
)
WRITTEN = {
    "qwen3_coder": "so\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm45": "so<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n"
    "<arg_value>2</arg_value>\n</tool_call>",
    "llama3_json": '{"name": "add", "parameters": {"a": 1, "b": "2"}}',
    "lfm2": 'so<|tool_call_start|>[add(a=1, b="2")]<|tool_call_end|>',
}


@pytest.fixture(scope="module")
def tokenizer():
    special = ["<|python_tag|>", "<|tool_call_start|>", "<|tool_call_end|>"]
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    return tokenizer


@pytest.mark.parametrize("name", WRITTEN)
def test_calls_are_read_as_vllm_does(name, tokenizer):
    parse = load_parser(name, tokenizer)
    beside, calls = parse(WRITTEN[name], (TOOL,))
    assert calls == (ToolCall("add", '{"a": 1, "b": "2"}', "call_0"),)
    assert beside == ("" if name == "llama3_json" else "so")
    for tools in ((TOOL,), ()):
        assert parse('no call {"a"', tools) == ('no call {"a"', ())


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45"])
def test_an_argument_has_the_type_that_its_schema_refers_to(name, tokenizer):
    """As pydantic writes models and enumerations, and MCP servers list them."""
    chain = {"anyOf": [{"$ref": "#/$defs/Chain"}, {"$ref": "#/$defs/Point"}]}
    point = {"type": "object", "properties": {"x": {"type": "integer"}}}
    kinds = {
        "plain": {"$ref": "#/$defs/Point", "description": "Where."},
        "optional": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]},
        "wrapped": {"allOf": [{"$ref": "#/$defs/a~1b"}]},
        "chained": {"$ref": "#/$defs/Chain"},
        "lost": {"$ref": "#/$defs/none"},
        "elsewhere": {"$ref": "other.json"},
    }
    definitions = {"Point": point, "a/b": {"$ref": "#/$defs/Point"}, "Chain": chain}
    schema = {"type": "object", "properties": kinds, "$defs": definitions}
    parse = load_parser(name, tokenizer)
    for key in kinds:
        _, calls = parse(
            WRITTEN[name]
            .replace("=a>", f"={key}>")
            .replace(">a<", f">{key}<")
            .replace("1", '{"x": 1}'),
            (Tool("add", "Adds.", json.dumps(schema)),),
        )
        wanted = '{"x": 1}' if key in ("lost", "elsewhere") else {"x": 1}
        assert json.loads(calls[0].arguments)[key] == wanted, key


def test_a_form_that_is_unknown_is_refused(tokenizer):
    with pytest.raises(InputError, match="no calls of the form 'morse'"):
        load_parser("morse", tokenizer)
    with pytest.raises(InputError, match="no calls of the form 'openai' here"):
        load_parser("openai", tokenizer)
    with pytest.raises(InputError, match="mistral"):
        load_parser("mistral", tokenizer)


def test_the_form_is_the_one_that_the_template_asks_for():
    assert [find_format(one) for one in (CHATML, LLAMA, PLAIN)] == ["hermes", "", ""]
    assert find_format("… <tool_call>\n<function=name>") == "qwen3_coder"
    assert {find_format(sign) for sign in SIGNS} == {*SIGNS.values()}
