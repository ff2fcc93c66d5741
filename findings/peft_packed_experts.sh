#!/bin/sh
# Expected: target_modules reach each matrix of their names, and "all-linear" each linear layer but the head; adapters in a
#   file that find no place are reported.
# What happens: since transformers packs a layer's experts, peft takes gate_proj, up_proj and down_proj for the packed
#   parameters alone. In GLM-4.5 and DeepSeek-V3 the dense layers and the shared experts have linear layers of these names;
#   they get no adapter, by name or by "all-linear". An adapter that was trained with them is loaded without them. No
#   warning says so.
# Package: peft 0.21.2 with transformers 5.23.0 and torch 2.13.0; models of random weights.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet peft==0.21.2 transformers==5.23.0 torch==2.13.0
HF_HOME="$dir" "$dir/venv/bin/python" - "$dir" <<'END'
import json
import sys
import warnings
from importlib.metadata import version

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

NAMES = ["gate_proj", "up_proj", "down_proj"]
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "n_group": 1, "topk_group": 1}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}


def adapted(model: torch.nn.Module) -> list[str]:
    parts = (name.partition("layers.")[2].partition(".lora_") for name, _ in model.named_parameters())
    return sorted({place for place, is_adapter, _ in parts if is_adapter and ".mlp." in place})


print("peft", version("peft"), "transformers", version("transformers"))
for family in ("glm4_moe", "deepseek_v3"):
    config = AutoConfig.for_model(family, **SIZES, **HEADS, **EXPERTS)
    for targets, more in ((NAMES, []), ("all-linear", ["1.mlp.gate"])):
        found = adapted(get_peft_model(AutoModelForCausalLM.from_config(config), LoraConfig(target_modules=targets)))
        print(f"{family}, {targets}:", *found)
        assert found == ["1.mlp.experts", "1.mlp.experts.base_layer", *more]
    model = AutoModelForCausalLM.from_config(config)
    sizes = {name: one.weight.shape for name, one in model.named_modules() if name.endswith(tuple(NAMES))}
    for name in list(sizes):  # a routed expert has the shape of the shared one
        sizes |= {name.replace("shared_experts", f"experts.{expert}"): sizes[name] for expert in range(4)}
    tensors = {f"base_model.model.{name}.lora_A.weight": torch.ones(4, shape[1]) for name, shape in sizes.items()}
    tensors |= {f"base_model.model.{name}.lora_B.weight": torch.ones(shape[0], 4) for name, shape in sizes.items()}
    save_file(tensors, f"{sys.argv[1]}/adapter_model.safetensors")
    with open(f"{sys.argv[1]}/adapter_config.json", "w") as file:
        json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": NAMES}, file)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = adapted(PeftModel.from_pretrained(model, sys.argv[1]))
    said = [str(one.message) for one in caught if "adapter" in str(one.message) or "pattern" in str(one.message)]
    print("of a file with adapters of all these layers:", *found, *said, sep="\n")
    assert found == ["1.mlp.experts", "1.mlp.experts.base_layer"] and all("_pattern keys did not" in one for one in said)
END
