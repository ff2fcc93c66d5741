#!/bin/sh
# Expected: the example in the docstring of TRL's parse_response gives the call that is printed below it.
# What happens: no call, no error, no warning: the whole call is the message's content. transformers' parse_response
#   raises a ValueError since it wants the prompt as `prefix`; TRL takes each ValueError for a broken call and
#   answers plain text. A loop that leaves out the optional `prefix` sees a model that never calls a tool.
#   An empty prefix is enough for Qwen3. For a template that opens the thoughts itself, such as Qwen3.5's, it gives
#   calls, and thoughts as content.
# Package: trl 1.16.0 with transformers 5.23.0. Documentation: the docstring of trl.chat_template_utils.parse_response.
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

QUESTION = [{"role": "user", "content": "3 times 4?"}]


def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    letters = {letter: id for id, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    of_bytes = Tokenizer(models.BPE(vocab=letters, merges=[]))
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    of_bytes.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=of_bytes, eos_token="<|im_end|>")
    tokenizer.chat_template = (files("trl") / "chat_templates" / f"{name}.jinja").read_text()
    return add_response_schema(tokenizer)


def parsed(name: str, text: str) -> dict[str, dict]:
    tokenizer = tokenizer_of(name)
    ids = tokenizer(text)["input_ids"]
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=False)
    found = {
        "no prefix": parse_response(tokenizer, ids),
        "an empty one": parse_response(tokenizer, ids, prefix=[]),
        "the prompt": parse_response(tokenizer, ids, prefix=prompt),
    }
    for words, message in found.items():
        print(f"{name}, {words}: {message}")
    try:
        tokenizer.parse_response(ids)
    except ValueError as error:
        print("transformers itself:", str(error).split(" (")[0])
    else:
        raise AssertionError("transformers takes no prefix for an empty one")
    return found


print("trl", version("trl"), "transformers", version("transformers"))
call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 3, "b": 4}}\n</tool_call>'
old = parsed("qwen3", call + "<|im_end|>")
assert old["no prefix"] == {"role": "assistant", "content": call}
assert old["an empty one"] == old["the prompt"]
assert old["the prompt"]["tool_calls"][0]["function"]["arguments"] == {"a": 3, "b": 4}

call = "<tool_call>\n<function=multiply>\n<parameter=a>\n3\n</parameter>\n</function>\n</tool_call>"
new = parsed("qwen3_5_think", f"Easy.\n</think>\n\n{call}<|im_end|>")
assert "tool_calls" not in new["no prefix"]
assert new["an empty one"]["content"] == "Easy.\n</think>" and new["an empty one"]["tool_calls"]
assert new["the prompt"]["reasoning_content"] == "Easy." and new["the prompt"]["tool_calls"]
END
