#!/bin/sh
# Expected: renderers extends a sampled turn of GLM-4.5 by what the model's chat template would put there. The template
#   has no end of a turn: the next message's first token follows the text. A user's message extends an answer, too.
# What happens: a turn that was cut gets <|endoftext|>, which the template prints nowhere; one cut in its thoughts
#   gets </think> before it, as if it had ended them. A turn that stopped at <|user|>, followed by a tool's result,
#   keeps it: <|user|><|observation|>. No user's message extends any answer, thoughts or none, until the renderer is told
#   to retain all of them.
# Package: renderers 0.1.12 (it imports httpx without asking for it), with the template in trl 1.16.0's wheel and
#   transformers 5.23.0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet renderers==0.1.12 httpx==0.28.1 transformers==5.23.0 jinja2==3.1.6
"$dir/venv/bin/pip" install --quiet --no-deps trl==1.16.0
HF_HOME="$dir" "$dir/venv/bin/python" - <<'END'
from importlib.metadata import distribution, version

from renderers.configs import GLM45RendererConfig
from renderers.glm45 import GLM45Renderer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

NAMES = "<|system|> <|user|> <|assistant|> <|observation|> <|endoftext|> [gMASK] <sop>"
TAGS = [f"<{slash}{tag}>" for tag in ("think", "tool_call", "arg_key", "arg_value") for slash in ("", "/")]
letters = {letter: id for id, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
of_bytes = Tokenizer(models.BPE(vocab=letters, merges=[]))
of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
of_bytes.decoder = decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=of_bytes)
tokenizer.add_special_tokens({"additional_special_tokens": NAMES.split() + TAGS})
template = distribution("trl").locate_file("trl/chat_templates/glm4moe.jinja").read_text()
tokenizer.chat_template = template

ASKED = [{"role": "user", "content": "Cats?"}]
PROMPT = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, return_dict=False)
NEXT = {role: [{"role": role, "content": "Five."}] for role in ("user", "tool")}
renderer = GLM45Renderer(tokenizer)
retaining = GLM45Renderer(tokenizer, GLM45RendererConfig(thinking_retention="all"))


def given(answer: str, role: str, by: GLM45Renderer = renderer) -> str | None:
    sampled = tokenizer.encode(answer, add_special_tokens=False)
    extended = by.bridge_to_next_turn(PROMPT, sampled, NEXT[role])
    text = extended and tokenizer.decode(extended.token_ids[len(PROMPT) + len(sampled) :])
    print(f"{answer!r}, then {role}: {text!r}")
    return text


print("renderers", version("renderers"), "transformers", version("transformers"))
print("<|endoftext|> in the template:", template.count("<|endoftext|>"))
assert "<|endoftext|>" not in template
thought, none = "\n<think>Hm.</think>\nFour", "\n<think></think>\nFour"
assert given(thought, "tool").startswith("<|endoftext|><|observation|>")
assert given("\n<think>Hm", "tool").startswith("</think><|endoftext|><|observation|>")
assert given(f"{thought}<|user|>", "tool").startswith("<|observation|>")
assert given(thought, "user") is given(f"{none}<|user|>", "user") is None
print("retaining all thoughts:")
assert given(f"{thought}<|user|>", "user", retaining).startswith("\nFive.")
END
