#!/bin/sh
# Expected: tie_word_embeddings in config.json says whether a model's head is its embedding. Where it does, a lm_head.weight
#   in the file is a copy, or it is left out.
# What happens: where the two differ, from_pretrained goes by the file: two matrices, with a warning, under a configuration
#   that goes on to say tied, also in what save_pretrained writes. A head in bfloat16 beside its embedding in float32 is
#   different, too. Whatever goes by the configuration later makes one matrix of them: tie_weights, a larger vocabulary, and
#   a model made of that configuration, into which load_state_dict puts the head in the embedding's place without an error.
# Package: transformers 5.23.0 with torch 2.13.0; a model of random weights.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet transformers==5.23.0 torch==2.13.0
HF_HOME="$dir" "$dir/venv/bin/python" -W ignore - "$dir/model" <<'END'
import json
import sys
from importlib.metadata import version

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

folder = sys.argv[1]
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 16}
config = Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True)
Qwen3ForCausalLM(config).save_pretrained(folder)
tensors = load_file(f"{folder}/model.safetensors")
embedding = tensors["model.embed_tokens.weight"]


def load(head: torch.Tensor) -> Qwen3ForCausalLM:
    save_file({**tensors, "lm_head.weight": head}, f"{folder}/model.safetensors", {"format": "pt"})
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)


def is_tied(model: Qwen3ForCausalLM) -> bool:
    return model.lm_head.weight is model.model.embed_tokens.weight


print("transformers", version("transformers"))
print("tied: a copy as head", is_tied(load(embedding.clone())), "- a copy in bfloat16", is_tied(load(embedding.bfloat16())))
assert is_tied(load(embedding.clone())) and not is_tied(load(embedding.bfloat16()))
head = torch.randn_like(embedding)
loaded = load(head)
other = Qwen3ForCausalLM(loaded.config)
other.load_state_dict(loaded.state_dict())
print("tied: another head", is_tied(loaded), "- a model of its configuration, given its weights", is_tied(other))
print("that model's embedding is now the head:", torch.equal(other.model.embed_tokens.weight, head))
assert not is_tied(loaded) and is_tied(other) and torch.equal(other.model.embed_tokens.weight, head)
loaded.save_pretrained(folder)
with open(f"{folder}/config.json") as file:
    says = json.load(file)["tie_word_embeddings"]
again, larger = (Qwen3ForCausalLM.from_pretrained(folder) for _ in range(2))
again.tie_weights()
larger.resize_token_embeddings(66)
print("saved: tied", says, "- after tie_weights", is_tied(again), "- after resize_token_embeddings", is_tied(larger))
assert says and is_tied(again) and is_tied(larger)
END
