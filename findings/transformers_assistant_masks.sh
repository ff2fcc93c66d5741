#!/bin/sh
# Expected: return_assistant_tokens_mask marks the tokens of what stands in a template's {% generation %}, those that
#   truncation has left.
# What happens: of the last character only the first token counts. One of another script or an emoji is two to four tokens in
#   the usual byte-level vocabularies: the others are no part of the answer where no mark ends it inside the block.
#   With truncation_side "left" a first answer whose beginning was cut ends the search: no token of any later answer is
#   marked, though all of them are there.
# Package: transformers 5.23.0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet transformers==5.23.0 jinja2==3.1.6
HF_HOME="$dir" "$dir/venv/bin/python" - <<'END'
from importlib.metadata import version

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = """{% for message in messages %}<{{ message.role }}>{% if message.role == "assistant" -%}
{% generation %}{{ message.content }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}{% endfor %}"""
letters = {letter: id for id, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
of_bytes = Tokenizer(models.BPE(vocab=letters, merges=[]))
of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
of_bytes.decoder = decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=of_bytes, truncation_side="left")


def marked(answers: list[str], **options: object) -> str:
    talk = [{"role": role, "content": text} for text in answers for role, text in (("user", "?"), ("assistant", text))]
    found = tokenizer.apply_chat_template(
        talk, chat_template=TEMPLATE, return_dict=True, return_assistant_tokens_mask=True, **options
    )
    pairs = list(zip(found["input_ids"], found["assistant_masks"], strict=True))
    print(f"{tokenizer.decode(found['input_ids'])!r}: {tokenizer.decode([id for id, is_marked in pairs if is_marked])!r}")
    return tokenizer.decode([id for id, is_marked in pairs if is_marked])


print("transformers", version("transformers"))
assert marked(["abc", "xyz"]) == "abcxyz"
assert marked(["It is 好", "fine 😀"]) == "It is \ufffdfine \ufffd"
assert marked(["abc", "xyz"], truncation=True, max_length=24) == "abcxyz"
assert marked(["abc", "xyz"], truncation=True, max_length=23) == ""
END
