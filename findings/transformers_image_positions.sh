#!/bin/sh
# Expected: token ids, patches and their grid are enough for the positions of images, as in transformers 4, since ids say
#   where the images are; where they are not, the model says what it lacks.
# What happens: the positions in three dimensions want mm_token_type_ids besides. Qwen2-VL, Qwen3-VL, Qwen3.5 and GLM-4V raise
#   without; Qwen2.5-VL, forward and generate, takes plain positions of text and says nothing. A trainer that puts sampled
#   tokens behind a prompt and passes what it passed to transformers 4 gets other log-probabilities than vLLM reports.
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
from transformers import AutoConfig, AutoModelForImageTextToText

IMAGE, BEGIN, END = 60, 62, 63
MARKS = {"image_token_id": IMAGE, "video_token_id": 61, "vision_start_token_id": BEGIN, "vision_end_token_id": END}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
TEXT = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "head_dim": 8}
TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 4, "initializer_range": 0.3}
TEXT |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
TOWER = {"depth": 1, "hidden_size": 32, "embed_dim": 32, "intermediate_size": 48, "num_heads": 4, "out_hidden_size": 32}
TOWER |= {"patch_size": 4, "window_size": 16, "fullatt_block_indexes": [0], "deepstack_visual_indexes": [0]}

torch.manual_seed(0)
ids = torch.tensor([[1, BEGIN, *[IMAGE] * 8, END, 5, 9, 7, 3, 8]])
given = {"input_ids": ids, "pixel_values": torch.randn(32, 96), "image_grid_thw": torch.tensor([[1, 4, 8]])}
silent = []
print("transformers", version("transformers"))
for family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm4v"):
    text = {**TEXT, "rope_parameters": dict(ROPE)}  # a configuration writes into it
    config = AutoConfig.for_model(family, text_config=text, vision_config=dict(TOWER), **MARKS)
    model = AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        right = model(**given, mm_token_type_ids=(ids == IMAGE).int()).logits
        try:
            without = model(**given).logits
            as_text = model(**given, position_ids=torch.arange(ids.shape[1]).expand(3, 1, -1)).logits
        except ValueError as error:
            print(f"{family}: {error}")
            continue
        begun = model.generate(**given, max_new_tokens=1, output_logits=True, return_dict_in_generate=True).logits[0]
    apart = (right.log_softmax(-1) - without.log_softmax(-1))[0, -5:].abs().max()
    silent.append(family)
    print(f"{family}: behind the image, log-probabilities are off by up to {apart:.2f}")
    torch.testing.assert_close(without, as_text)
    torch.testing.assert_close(begun, as_text[:, -1])
    assert apart > 0.1
assert silent == ["qwen2_5_vl"], silent
END
