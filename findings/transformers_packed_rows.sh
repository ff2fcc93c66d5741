#!/bin/sh
# Expected: position ids that begin again mark the sequences of a packed row where there is no attention mask; whether a cache
#   is kept changes no numbers.
# What happens: the marks are read only without a cache, and a cache is the default, in training mode, too. So a forward that
#   does not say use_cache=False lets each sequence see those before it, and says nothing; gradient checkpointing, which
#   switches the cache off, hides it in training but not in the log-probabilities of a reference. A mask of ones does the
#   same. gpt-oss reads no marks in either case: its own code does not hand them on.
# Package: transformers 5.23.0 with torch 2.13.0; models of random weights.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet transformers==5.23.0 torch==2.13.0
HF_HOME="$dir" "$dir/venv/bin/python" -W ignore - <<'END'
from importlib.metadata import version

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 4, "initializer_range": 0.3, "num_local_experts": 4}
SIZES |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
first, second = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[10, 11, 12, 13, 14, 15, 16]])
row = torch.cat([first, second], dim=1)
packed = {"position_ids": torch.cat([torch.arange(5), torch.arange(7)])[None]}
CASES = {
    "no cache": {"use_cache": False},
    "as it comes": {},
    "no cache, a mask of ones": {"use_cache": False, "attention_mask": torch.ones_like(row)},
}
sees_others = {}
print("transformers", version("transformers"))
for family in ("llama", "qwen3", "gemma3_text", "gpt_oss"):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES))
    for training in (False, True):
        model.train(training)
        with torch.no_grad():
            alone = model(second).logits.log_softmax(-1)
            for case, options in CASES.items():
                behind = model(row, **packed, **options).logits.log_softmax(-1)[:, 5:]
                apart = (behind - alone).abs().max()
                sees_others[family, case, training] = bool(apart > 0.01)
                print(f"{family}, {case}, {'training' if training else 'eval'}: off by up to {apart:.3f}")
assert all(sees == (case != "no cache" or family == "gpt_oss") for (family, case, _), sees in sees_others.items())
END
