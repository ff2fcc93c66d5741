"""Every key of a model's configuration is known, or the model is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.npu.models import CONFIGS
from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.known_keys import check_keys
from trimaran.errors import InputError
from trimaran.model.families.llama import LLAMA

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
    "mistral": "MistralConfig",
    "gemma3_text": "Gemma3TextConfig",
    "deepseek_v3": "DeepseekV3Config",
    "glm4_moe": "Glm4MoeConfig",
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


YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
DEEPSEEK_R1 = CONFIGS["DeepSeek-R1"] | {
    **{"num_nextn_predict_layers": 1, "aux_loss_alpha": 0.001, "hidden_act": "silu", "ep_size": 1},
    **{"rope_theta": 10000, "max_position_embeddings": 163840, "seq_aux": True},
    "attention_bias": False,
    "rope_scaling": YARN | {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
}
GLM: dict[str, Any] = {
    **{"model_type": "glm4_moe", "num_attention_heads": 96, "num_key_value_heads": 8},
    **{"head_dim": 128, "attention_bias": True, "partial_rotary_factor": 0.5, "rope_theta": 1e6},
    **{"n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1},
    **{"norm_topk_prob": True, "num_nextn_predict_layers": 1, "hidden_act": "silu"},
    **{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "vocab_size": 151552},
    **{"tie_word_embeddings": False, "rope_scaling": None},
}
GLM_4_5 = GLM | {
    **{"hidden_size": 5120, "num_hidden_layers": 92, "intermediate_size": 12288},
    **{"n_routed_experts": 160, "moe_intermediate_size": 1536, "first_k_dense_replace": 3},
    **{"routed_scaling_factor": 2.5, "use_qk_norm": True},
}
GLM_4_5_AIR = GLM | {
    **{"hidden_size": 4096, "num_hidden_layers": 46, "intermediate_size": 10944},
    **{"n_routed_experts": 128, "moe_intermediate_size": 1408, "first_k_dense_replace": 1},
    **{"routed_scaling_factor": 1.0, "use_qk_norm": False},
}


@pytest.mark.parametrize(
    ("config", "billions"), [(DEEPSEEK_R1, 671.0), (GLM_4_5, 352.8), (GLM_4_5_AIR, 106.9)]
)
def test_published_models_are_taken(
    config: dict[str, Any], billions: float, tmp_path: Path
) -> None:
    """Without the head for a further token, which GLM's makers count."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = read_architecture(tmp_path, is_whole=False).facts
    assert facts.num_parameters / 1e9 == pytest.approx(billions, rel=1e-3)


def test_groups_that_megatron_core_would_choose_otherwise_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_R1 | {"topk_group": 2}))
    with pytest.raises(InputError, match="num_experts_per_tok 8 with topk_group 2 is not"):
        read_architecture(tmp_path, is_whole=False)


def test_quantized_weights_are_refused(tmp_path: Path) -> None:
    quantized = {"quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_R1 | quantized))
    with pytest.raises(InputError, match=r"quantized \(fp8\).* bfloat16"):
        read_architecture(tmp_path, is_whole=False)


def test_a_folder_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    tree = {**written("llama"), "logit_scale": 0.1}
    (tmp_path / "config.json").write_text(json.dumps(tree))
    with pytest.raises(InputError, match="config.json: logit_scale is not known"):
        read_architecture(tmp_path, is_whole=False)
