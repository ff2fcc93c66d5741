#!/bin/sh
# Expected: ensure_weight_tying gives a tied model's embedding and head one adapter, as its documentation says, and
#   merge_and_unload makes of it the model that was trained.
# What happens: the one adapter is merged twice into the one matrix, first as the embedding's, then as the head's: W + 2 BA
#   where the trained model computes with W + BA. A warning speaks of complications and of untying the two by hand, which
#   the option was to spare; it appears with and without it.
# Package: peft 0.21.2 with transformers 5.23.0 and torch 2.13.0. Documentation: LoraConfig's ensure_weight_tying.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet peft==0.21.2 transformers==5.23.0 torch==2.13.0
HF_HOME="$dir" "$dir/venv/bin/python" -W ignore - <<'END'
from importlib.metadata import version

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

torch.manual_seed(0)
print("peft", version("peft"), "transformers", version("transformers"))
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 16}
config = Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True)
for target in ("embed_tokens", "lm_head"):
    model = Qwen3ForCausalLM(config).eval()
    before = model.lm_head.weight.detach().clone()
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=4, target_modules=[target], ensure_weight_tying=True))
    for one in (one for name, one in model.named_parameters() if "lora_" in name):
        torch.nn.init.normal_(one, std=0.1)
    head = model.base_model.model.lm_head
    update = head.get_delta_weight("default").detach()
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        trained = model(input_ids=tokens).logits
        merged = model.merge_and_unload()
        apart = (merged(input_ids=tokens).logits - trained).abs().max()
    added = merged.lm_head.weight - before
    print(f"target {target}: what was merged is {(added / update).median():.3f} times BA;")
    print(f"  logits of up to {trained.abs().max():.2f} are off by up to {apart:.2f}")
    assert merged.lm_head.weight is merged.model.embed_tokens.weight
    torch.testing.assert_close(added, 2 * update)
END
