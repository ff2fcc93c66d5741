#!/bin/sh
# Expected: the {% generation %} blocks of the templates that TRL ships for assistant_only_loss hold what a policy writes:
#   they begin where a generation prompt ends, and end with the mark that ends the turn.
# What happens: 25 of 34 go on to the line break behind that mark, which no engine that stops at the mark samples. 13 begin
#   earlier, with what the generation prompt gives: <think> and a line break (Qwen3.5 and newer, Nemotron 3), the name of the
#   role (DeepSeek-V3 and R1, gpt-oss, Muse Glimmer), the line break behind it (Qwen2.5). So a warm-up by these masks trains
#   tokens that GRPO never counts. Llama 3, Cohere, LLaVA and GLM-4.5 are as expected.
# Package: trl 1.16.0 with transformers 5.23.0. Documentation: the README in trl/chat_templates.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet transformers==5.23.0 jinja2==3.1.6
"$dir/venv/bin/pip" install --quiet --no-deps trl==1.16.0
HF_HOME="$dir" "$dir/venv/bin/python" - <<'END'
from importlib.metadata import distribution, version
from pathlib import Path

from jinja2 import TemplateError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

letters = {letter: id for id, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
of_bytes = Tokenizer(models.BPE(vocab=letters, merges=[]))
of_bytes.pre_tokenizer, of_bytes.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=of_bytes, bos_token="<s>", eos_token="</s>")


def look(template: str, as_parts: bool) -> tuple[str, str]:
    """What a block holds before the answer and the prompt ends with, and what it holds behind the answer."""
    texts = (("user", "Hi"), ("assistant", "Fine"), ("user", "Sure?"))
    talk = [{"role": role, "content": [{"type": "text", "text": text}] if as_parts else text} for role, text in texts]
    prompt = tokenizer.apply_chat_template(talk[:1], chat_template=template, tokenize=False, add_generation_prompt=True)
    options = {"chat_template": template, "return_dict": True, "return_assistant_tokens_mask": True}
    found = tokenizer.apply_chat_template(talk, **options)
    ids, marks = found["input_ids"], found["assistant_masks"]
    begin, length = marks.index(1), sum(marks)
    assert all(marks[begin : begin + length]), "one answer is one block"
    block = tokenizer.decode(ids[begin : begin + length])
    return prompt[len(tokenizer.decode(ids[:begin])) :], block[block.index("Fine") + 4 :]


print("trl", version("trl"), "transformers", version("transformers"))
looked = {}
for file in sorted(file for file in distribution("trl").files or [] if file.suffix == ".jinja"):
    template = Path(file.locate()).read_text()
    for as_parts in (True, False) if "endgeneration" in template else ():
        try:
            looked[file.stem] = look(template, as_parts)
        except (TemplateError, TypeError, ValueError):  # it takes contents that are lists, or contents that are texts
            continue
for name, (given, behind) in looked.items():
    print(f"{name}: of the prompt {given!r}, behind the answer {behind!r}")
begun = [name for name, (given, _) in looked.items() if given]
broken = [name for name, (_, behind) in looked.items() if behind.endswith("\n")]
print(f"of {len(looked)}, {len(begun)} hold the prompt's end, {len(broken)} the line break behind the turn")
assert (len(looked), len(begun), len(broken)) == (34, 13, 25)
END
