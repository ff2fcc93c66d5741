#!/bin/sh
# Expected: an answer that max_tokens cut off in the middle of a tool call is read alike whatever the model's family:
#   as no call, or as an error.
# What happens: for Qwen3.5, GLM-4.5 and Nemotron 3 it is a whole call, without the argument that was cut, as if the
#   model had left it out; a tool runs with its default. For Qwen3 it is text, unless only the end tag is missing;
#   then it is a call. For gpt-oss it is a message that is empty.
# Package: trl 1.16.0 (its response schemas) with transformers 5.23.0, which parses.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet transformers==5.23.0 datasets==5.2.0 jinja2==3.1.6
"$dir/venv/bin/pip" install --quiet --no-deps trl==1.16.0
HF_HOME="$dir" "$dir/venv/bin/python" - <<'END'
from importlib.metadata import version
from importlib.resources import files

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import add_response_schema, parse_response

TAGS = "<tool_call>\n<function=search>\n<parameter=query>\ncats\n</parameter>\n<parameter=limit>\n12"
CUT = {
    "qwen3_5_think": f"Hm.\n</think>\n\n{TAGS}",
    "nemotron_3_nano": f"Hm.\n</think>\n{TAGS}",
    "glm4moe": "\n<think>Hm.</think>\n<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>cats</arg_value>"
    "\n<arg_key>limit</arg_key>\n<arg_value>12",
    "qwen3": '<tool_call>\n{"name": "search", "arguments": {"query": "cats", "limit": 12',
    "gptoss": '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "cats", "limit": 12',
}


def read(name: str, text: str) -> dict:
    letters = {letter: id for id, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    of_bytes = Tokenizer(models.BPE(vocab=letters, merges=[]))
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    of_bytes.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=of_bytes, eos_token="<|end|>")
    tokenizer.chat_template = (files("trl") / "chat_templates" / f"{name}.jinja").read_text()
    tokenizer = add_response_schema(tokenizer)
    asked = [{"role": "user", "content": "Find cats."}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    message = parse_response(tokenizer, tokenizer(text)["input_ids"], prefix=prompt)
    print(f"{name}: {message}")
    return message


print("trl", version("trl"), "transformers", version("transformers"))
found = {name: read(name, text) for name, text in CUT.items()}
for name in ("qwen3_5_think", "nemotron_3_nano", "glm4moe"):
    assert found[name]["tool_calls"][0]["function"] == {"name": "search", "arguments": {"query": "cats"}}, name
assert "tool_calls" not in found["qwen3"] and found["qwen3"]["content"] == CUT["qwen3"]
assert read("qwen3", CUT["qwen3"] + "}}")["tool_calls"]
assert found["gptoss"] == {"role": "assistant", "content": ""}
END
