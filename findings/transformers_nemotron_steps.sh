#!/bin/sh
# Expected: what generate gives as a token's logits is what one forward over the whole text gives there; a Mamba layer's steps
#   are bounded by the configuration's time_step_limit, which is (0, inf) in Nemotron-H.
# What happens: a forward bounds them by time_step_min, 0.001, and reads no time_step_limit; decoding has no bound. So
#   the log-probabilities of a policy's own tokens are others in the forward that trains than in the one that sampled, and
#   vLLM, whose bound is (0, inf) in both, is on the sampler's side. With the configuration's limit in each layer the two
#   agree to rounding, as they do in Falcon-H1, which reads it.
# Package: transformers 5.23.0 with torch 2.13.0; models of random weights. vLLM 0.30 was read, not run.
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

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "head_dim": 8}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 4, "initializer_range": 0.3}
SIZES |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}


def apart(model: torch.nn.Module) -> float:
    """How far log-probabilities of decoding and of one forward lie apart, over 24 tokens."""
    prompt = torch.tensor([[5, 6, 7, 8]])
    found = model.generate(prompt, max_new_tokens=24, output_logits=True, return_dict_in_generate=True)
    sampled = torch.stack(found.logits, dim=1).log_softmax(-1)
    with torch.no_grad():
        trained = model(found.sequences, use_cache=False).logits[:, 3:-1].log_softmax(-1)
    return (sampled - trained).abs().max().item()


print("transformers", version("transformers"))
for family in ("falcon_h1", "nemotron_h"):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SIZES)
    model = AutoModelForCausalLM.from_config(config).eval()
    layers = [one for one in model.modules() if hasattr(one, "time_step_limit")]
    bound, as_it_is = layers[0].time_step_limit, apart(model)
    for one in layers:
        one.time_step_limit = tuple(config.time_step_limit)
    print(f"{family}: configured {tuple(config.time_step_limit)}, in its layers {bound}: {as_it_is:.6f} apart")
    print(f"  with the configured limit {apart(model):.6f}")
    assert apart(model) < 1e-4 and (as_it_is > 1e-3) == (family == "nemotron_h")
END
