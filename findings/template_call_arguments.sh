#!/bin/sh
# Expected: a conversation in OpenAI's form, where a call's arguments are JSON text, is rendered as the same one with a
#   mapping, or it raises; in one family alike.
# What happens: each Qwen differs. Qwen3 renders both alike. Qwen2.5 quotes the text once more, so that the policy
#   sees a string where it wrote an object, and so do Llama 3.1 and gpt-oss, without an error. Qwen3.5 and Nemotron 3
#   raise a TypeError of Jinja's. DeepSeek-V3 is the other way round: a mapping raises, text does not. Gemma 4 puts the
#   text between the braces that it makes itself: two pairs.
# Package: the chat templates in trl 1.16.0's wheel, rendered by transformers 5.23.0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet transformers==5.23.0 jinja2==3.1.6
"$dir/venv/bin/pip" install --quiet --no-deps trl==1.16.0
HF_HOME="$dir" "$dir/venv/bin/python" - <<'END'
from importlib.metadata import distribution, version

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>")


def rendered(name: str, arguments: dict | str) -> str:
    """The end of the line with the arguments, or the error's name."""
    path = distribution("trl").locate_file(f"trl/chat_templates/{name}.jinja")
    call = {"type": "function", "function": {"name": "look", "arguments": arguments}}
    talk = [{"role": "user", "content": "Cats?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    try:
        text = tokenizer.apply_chat_template(talk, chat_template=path.read_text(), tokenize=False)
    except TypeError as error:
        return type(error).__name__
    return next(line[-100:] for line in text.splitlines() if "place" in line)


print("trl", version("trl"), "transformers", version("transformers"))
kinds = {}
for name in ("qwen3", "qwen2_5", "llama3_1", "gptoss", "qwen3_5_think", "nemotron_3_nano", "deepseekv3", "gemma4"):
    mapping, text = rendered(name, {"place": "sofa"}), rendered(name, '{"place": "sofa"}')
    print(f"{name}\n    mapping: {mapping}\n    text:    {text}")
    kinds[name] = (
        "alike" if mapping == text
        else "raises" if text == "TypeError"
        else "mapping raises" if mapping == "TypeError"
        else "quoted" if '\\"place' in text
        else "braces" if "{{" in text
        else "other"
    )
print(kinds)
assert kinds == {
    "qwen3": "alike",
    "qwen2_5": "quoted",
    "llama3_1": "quoted",
    "gptoss": "quoted",
    "qwen3_5_think": "raises",
    "nemotron_3_nano": "raises",
    "deepseekv3": "mapping raises",
    "gemma4": "braces",
}
END
