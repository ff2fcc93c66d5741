"""Every key of a model's configuration is known, or the model is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.families.llama import LLAMA
from services.trainer.megatron.known_keys import check_keys
from trimaran.errors import InputError

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

CLASSES = {
    "llama": "LlamaConfig",
    "qwen2": "Qwen2Config",
    "qwen2_moe": "Qwen2MoeConfig",
    "qwen3": "Qwen3Config",
    "qwen3_moe": "Qwen3MoeConfig",
    "qwen2_5_vl": "Qwen2_5_VLConfig",
    "qwen3_vl": "Qwen3VLConfig",
    "qwen3_vl_moe": "Qwen3VLMoeConfig",
}
OLDER = {
    "torch_dtype": "bfloat16",
    "rope_theta": 1e6,
    "rope_scaling": None,
    "_model_name_or_path": "a",
}
"""As transformers 4 writes them."""


def written(name: str) -> dict[str, Any]:
    return json.loads(getattr(transformers, CLASSES[name])().to_json_string(use_diff=False))


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("older", [{}, OLDER])
def test_a_folder_as_transformers_writes_it_is_taken(name: str, older: dict[str, Any]) -> None:
    from trimaran.choices import FAMILIES
    from trimaran.model.folder import language_config

    check_keys(language_config({**written(name), **older}), FAMILIES.load(name), "config.json")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sliding_window": 4096}, "sliding-window attention"),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping is not known"),
        ({"layer_types": ["sliding_attention"]}, "sliding-window attention"),
        ({"mlp_bias": True}, "mlp_bias: True is not supported; it must be False"),
    ],
)
def test_a_key_that_makes_another_model_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=f"config.json: .*{reason}"):
        check_keys({**written("llama"), **changes}, LLAMA, "config.json")


def test_a_folder_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    tree = {**written("llama"), "logit_scale": 0.1}
    (tmp_path / "config.json").write_text(json.dumps(tree))
    with pytest.raises(InputError, match="config.json: logit_scale is not known"):
        read_architecture(tmp_path, is_whole=False)
