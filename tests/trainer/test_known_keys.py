"""Every key of a model's configuration is known, or the model is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from benchmarks.npu.models import CONFIGS
from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.known_keys import check_keys
from trimaran.choices import FAMILIES
from trimaran.errors import InputError
from trimaran.model.folder import language_config

OLDER = {
    **{"torch_dtype": "bfloat16", "rope_theta": 1e6, "rope_scaling": None},
    "_model_name_or_path": "a",
}
"""As transformers 4 writes them."""


def written(name: str) -> dict[str, Any]:
    return json.loads(AutoConfig.for_model(name).to_json_string(use_diff=False))


LLAMA = written("llama")


@pytest.mark.parametrize("name", FAMILIES.built_in)
@pytest.mark.parametrize("older", [{}, OLDER])
def test_a_folder_as_transformers_writes_it_is_taken(name: str, older: dict[str, Any]) -> None:
    check_keys(language_config({**written(name), **older}), FAMILIES.load(name), "config.json")


YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
DEEPSEEK_R1 = CONFIGS["DeepSeek-R1"] | {
    **{"num_nextn_predict_layers": 1, "aux_loss_alpha": 0.001, "hidden_act": "silu", "ep_size": 1},
    **{"rope_theta": 10000, "max_position_embeddings": 163840, "seq_aux": True},
    "attention_bias": False,
    "rope_scaling": YARN | {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
}
GLM_4_5: dict[str, Any] = {
    **{"model_type": "glm4_moe", "num_attention_heads": 96, "num_key_value_heads": 8},
    **{"head_dim": 128, "attention_bias": True, "partial_rotary_factor": 0.5, "rope_theta": 1e6},
    **{"n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1},
    **{"norm_topk_prob": True, "num_nextn_predict_layers": 1, "hidden_act": "silu"},
    **{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "vocab_size": 151552},
    **{"tie_word_embeddings": False, "rope_scaling": None},
    **{"hidden_size": 5120, "num_hidden_layers": 92, "intermediate_size": 12288},
    **{"n_routed_experts": 160, "moe_intermediate_size": 1536, "first_k_dense_replace": 3},
    **{"routed_scaling_factor": 2.5, "use_qk_norm": True},
}


@pytest.mark.parametrize(("config", "billions"), [(DEEPSEEK_R1, 671.0), (GLM_4_5, 352.8)])
def test_published_models_are_taken(
    config: dict[str, Any], billions: float, tmp_path: Path
) -> None:
    """Without the head for a further token, which GLM's makers count."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = read_architecture(tmp_path, is_whole=False).facts
    assert facts.num_parameters / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "changes", "reason"),
    [
        (LLAMA, {"sliding_window": 4096}, "sliding-window attention"),
        (LLAMA, {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping is not known"),
        (LLAMA, {"layer_types": ["sliding_attention"]}, "sliding-window attention"),
        (LLAMA, {"mlp_bias": True}, "mlp_bias: True is not supported; it must be False"),
        # megatron-core would choose groups otherwise
        (DEEPSEEK_R1, {"topk_group": 2}, "num_experts_per_tok 8 with topk_group 2 is not"),
        (DEEPSEEK_R1, {"quantization_config": {"quant_method": "fp8"}}, "quantized .fp8..* bfloat"),
    ],
)
def test_a_key_that_makes_another_model_is_refused(
    model: dict[str, Any], changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(model | changes))
    with pytest.raises(InputError, match=f"config.json: .*{reason}"):
        read_architecture(tmp_path, is_whole=False)
