#!/bin/sh
# Expected: generate with num_return_sequences gives each answer of a group the images of its prompt.
# What happens: in GLM-4V a prompt with the images A and B becomes, for two answers, one prompt with A and A, and one with B and
#   B: it repeats each image where the group of them should be repeated. Nothing says so where both have one size. Qwen2-VL,
#   Qwen2.5-VL and Qwen3-VL repeat groups. The same prompt given twice, as a batch of two, is right in GLM-4V, too.
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
MARKS |= {"image_start_token_id": BEGIN, "image_end_token_id": END, "video_start_token_id": 58, "video_end_token_id": 59}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
TEXT = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 4, "initializer_range": 0.3}
TEXT |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
TOWER = {"depth": 1, "hidden_size": 32, "embed_dim": 32, "intermediate_size": 48, "num_heads": 4, "out_hidden_size": 32}
TOWER |= {"patch_size": 4, "window_size": 16, "fullatt_block_indexes": [0], "deepstack_visual_indexes": [0]}

ids = torch.tensor([[1, BEGIN, *[IMAGE] * 8, END, 2, BEGIN, *[IMAGE] * 8, END, 5, 9]])
one, other = torch.randn(2, 32, 96, generator=torch.Generator().manual_seed(0))
wrong = []
print("transformers", version("transformers"))
for family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v"):
    torch.manual_seed(0)
    text = {**TEXT, "rope_parameters": dict(ROPE)}  # a configuration writes into it
    config = AutoConfig.for_model(family, text_config=text, vision_config=dict(TOWER), **MARKS)
    model = AutoModelForImageTextToText.from_config(config).eval()

    def begin(*images: torch.Tensor, rows: int = 1, answers: int = 1) -> torch.Tensor:
        """The log-probabilities of the first token of each answer to `rows` copies of the prompt with these images."""
        prompt = ids.repeat(rows, 1)
        given = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt), "pixel_values": torch.cat(images)}
        given |= {"mm_token_type_ids": (prompt == IMAGE).int(), "image_grid_thw": torch.tensor([[1, 4, 8]] * len(images))}
        options = {"max_new_tokens": 1, "do_sample": True, "output_logits": True, "return_dict_in_generate": True}
        return model.generate(**given, num_return_sequences=answers, **options).logits[0].log_softmax(-1)

    right = begin(one, other)
    group, batch = begin(one, other, answers=2), begin(one, other, one, other, rows=2)
    apart = [round((row - right).abs().max().item(), 2) for row in group]
    print(f"{family}: the answers' first log-probabilities are off by up to {apart}")
    torch.testing.assert_close(batch, right.repeat(2, 1), atol=1e-3, rtol=0)
    if max(apart) > 0.01:
        wrong.append(family)
        torch.testing.assert_close(group, torch.cat([begin(one, one), begin(other, other)]), atol=1e-3, rtol=0)
assert wrong == ["glm4v"], wrong
END
