#!/bin/sh
# Expected: is_chat_template_prefix_preserving tells whether earlier messages are rendered alike "regardless of what
#   messages follow", as its docstring says; the templates that TRL ships for training have that property.
# What happens: it tries one empty call and one tool message. It says yes to 21 of the 72 shipped templates that leave
#   out or change an answer as soon as a message of the user follows, among them seven for training (GLM-4.5, gpt-oss,
#   Nemotron 3, Diffusion Gemma). Of Qwen3 it says no, of Qwen3.5 and 3.6, which do the same to reasoning, yes.
# Package: trl 1.16.0 with transformers 5.23.0. Documentation: the docstring of trl.chat_template_utils.
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

from jinja2 import TemplateError
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import is_chat_template_prefix_preserving


def tokenizer_with(template: str) -> PreTrainedTokenizerFast:
    letters = {letter: id for id, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    of_bytes = Tokenizer(models.BPE(vocab=letters, merges=[]))
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=of_bytes, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    tokenizer.chat_template = template
    return tokenizer


def keeps_answers(tokenizer: PreTrainedTokenizerFast) -> bool:
    talk = [
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "reasoning_content": "Two and two.", "content": "4"},
        {"role": "user", "content": "Sure?"},
    ]
    before, after = (tokenizer.apply_chat_template(part, tokenize=False) for part in (talk[:2], talk))
    return after.startswith(before)


said_yes, wrongly = [], []
paths = [path for path in (files("trl") / "chat_templates").iterdir() if path.name.endswith(".jinja")]
for path in sorted(paths, key=lambda path: path.name):
    tokenizer = tokenizer_with(path.read_text())
    try:
        said, kept = is_chat_template_prefix_preserving(tokenizer), keeps_answers(tokenizer)
    except TemplateError:  # it refuses tools, or wants contents that are lists
        continue
    if said:
        said_yes.append(path.stem)
    if said and not kept:
        wrongly.append(path.stem)

training = [name for name in wrongly if name.endswith("_training")]
print("trl", version("trl"), "transformers", version("transformers"))
print(f"{len(paths)} templates, {len(said_yes)} said to preserve prefixes; not behind a message of the user:")
print(*wrongly, sep="\n")
print(f"{len(training)} of {len(wrongly)} are for training")
assert len(wrongly) == 21 and len(training) == 7, (len(wrongly), len(training))
assert "qwen3" not in said_yes and {"qwen3_5_think", "qwen3_6"} <= set(wrongly)
END
