"""Tiny random vision-language models as Hugging Face folders, with tokenizer and image processor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.tiny_model import make_distinct, tiny_tokenizer

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
SPECIAL = (
    *("<pad>", "<|im_end|>", "<unk>", "<|im_start|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)
"""Numbered from 0 on; characters follow."""
VISION_START, VISION_END, IMAGE, VIDEO = 4, 5, 6, 7
TOKENS = {
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT: Mapping[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "pad_token_id": 0,
}
"""Heads of 32 channels, which vLLM can compute on a CPU."""
TOWER: Mapping[str, Any] = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "in_channels": 3,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
ROPE = {
    "qwen2_5_vl": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e4},
    "qwen3_vl": {
        "rope_type": "default",
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
        "rope_theta": 1e4,
    },
}
ROPE["qwen3_vl_moe"] = ROPE["qwen3_vl"]
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    # A multiple of 32, as vLLM wants it on a CPU. Twice it is not the hidden size, so that a tensor the
    # wrong way round shows.
    "moe_intermediate_size": 96,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
EYES: dict[str, Mapping[str, Any]] = {
    # A window of two by two merged patches, so that images of three differ from full attention.
    "qwen2_5_vl": {"patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]},
    # Two layers of the tower feed the first two of the language model.
    "qwen3_vl": {
        "patch_size": 16,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    },
}
EYES["qwen3_vl_moe"] = EYES["qwen3_vl"]
"""Of the towers, in addition to TOWER."""
PROCESSORS = {
    "qwen2_5_vl": ("Qwen2_5_VLProcessor", (0.48145466, 0.4578275, 0.40821073), 0.27),
    "qwen3_vl": ("Qwen3VLProcessor", (0.5, 0.5, 0.5), 0.5),
}
PROCESSORS["qwen3_vl_moe"] = PROCESSORS["qwen3_vl"]
"""Class, mean and spread of the pixels."""


def patch_multiple(family: str) -> int:
    """Pixels: sides of images are multiples of it, and each square of them is one token."""
    return 2 * EYES[family]["patch_size"]


def write_tiny_vision(
    folder: Path,
    family: str = "qwen2_5_vl",
    dtype: str = "float32",
    seed: int = 0,
    tied: bool = False,
    num_layers: int = 3,
    text: Mapping[str, Any] = TEXT,
    tower: Mapping[str, Any] = TOWER,
) -> Path:
    """`family`: one of `FAMILIES`. One token a character, one for each square of `patch_multiple`
    pixels of an image. Weights are large enough that logits differ and that the image matters."""
    import torch

    torch.manual_seed(seed)
    model = _model_class(family)(
        _config(family, tied, {**text, "num_hidden_layers": num_layers}, tower)
    )
    make_distinct(model)
    model.generation_config.eos_token_id = 1
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    if family == "qwen3_vl_moe":
        _as_published(folder)
    tiny_vision_tokenizer().save_pretrained(folder)
    _write_processor(folder, family)
    return folder


def nest_names(folder: Path) -> Path:
    """The same folder of Qwen2.5-VL, with the names that transformers' modules have: so does a folder that
    was saved without turning them back into its makers'."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    nested = {_nested(name): tensor for name, tensor in load_file(path).items()}
    save_file(nested, path, {"format": "pt"})
    return folder


def _nested(name: str) -> str:
    if name.startswith("visual."):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


def _model_class(family: str) -> Any:
    import transformers

    return {
        "qwen2_5_vl": transformers.Qwen2_5_VLForConditionalGeneration,
        "qwen3_vl": transformers.Qwen3VLForConditionalGeneration,
        "qwen3_vl_moe": transformers.Qwen3VLMoeForConditionalGeneration,
    }[family]


def _config(family: str, tied: bool, text: Mapping[str, Any], tower: Mapping[str, Any]) -> Any:
    import transformers

    own: dict[str, Any] = {**text, "rope_parameters": ROPE[family]}
    if family == "qwen2_5_vl":
        config_class: Any = transformers.Qwen2_5_VLConfig
        own |= {"bos_token_id": None, "eos_token_id": 1}
    else:
        config_class = transformers.Qwen3VLConfig
        own["head_dim"] = own["hidden_size"] // own["num_attention_heads"]
    if family == "qwen3_vl_moe":
        config_class = transformers.Qwen3VLMoeConfig
        own |= {**EXPERTS, "tie_word_embeddings": tied}
    eyes = {**tower, **EYES[family], "out_hidden_size": own["hidden_size"]}
    return config_class(text_config=own, vision_config=eyes, tie_word_embeddings=tied, **TOKENS)


def _as_published(folder: Path) -> None:
    """Experts as the makers' folders have them, [experts, inputs, outputs]: transformers saves a fresh model
    with the last two exchanged. And a key that vLLM reads."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    stacks = {name: one for name, one in tensors.items() if ".mlp.experts." in name}
    tensors |= {name: one.transpose(1, 2).contiguous() for name, one in stacks.items()}
    save_file(tensors, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["norm_topk_prob"] = True
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _write_processor(folder: Path, family: str) -> None:
    name, mean, spread = PROCESSORS[family]
    common = {
        "processor_class": name,
        "patch_size": EYES[family]["patch_size"],
        "temporal_patch_size": TOWER["temporal_patch_size"],
        "merge_size": TOWER["spatial_merge_size"],
        "image_mean": mean,
        "image_std": [spread] * 3,
    }
    multiple = patch_multiple(family)
    least, most = multiple**2, 64 * multiple**2
    image = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "size": {"shortest_edge": least, "longest_edge": most},
        "min_pixels": least,
        "max_pixels": most,
    }
    kind = "Qwen2VLVideoProcessor" if family == "qwen2_5_vl" else "Qwen3VLVideoProcessor"
    video = {
        "video_processor_type": kind,
        "size": {"shortest_edge": 128 * multiple**2, "longest_edge": 768 * multiple**2},
    }
    for stem, kinds in (("preprocessor", image), ("video_preprocessor", video)):
        text = json.dumps(common | kinds, indent=1)
        (folder / f"{stem}_config.json").write_text(text, encoding="utf-8")


def tiny_vision_tokenizer() -> Any:
    return tiny_tokenizer(SPECIAL, CHAT_TEMPLATE)
