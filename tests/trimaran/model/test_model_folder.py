from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimaran.errors import InputError
from trimaran.model.folder import ModelFacts, check_tensor_parallel, read_model_folder

SMOLLM2 = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
}


def make_folder(path: Path, config: dict[str, Any] | str, without: str = "") -> Path:
    path.mkdir()
    text = config if isinstance(config, str) else json.dumps(config)
    files = {"config.json": text, "model.safetensors": "", "tokenizer.json": "{}"}
    for name, content in files.items():
        if name != without:
            (path / name).write_text(content)
    return path


def test_the_facts_of_a_folder(tmp_path: Path) -> None:
    facts = read_model_folder(make_folder(tmp_path / "m", SMOLLM2))
    assert facts == ModelFacts("llama", 30, 576, 1536, 9, 3, 64, 49152, True, 8192)


def test_old_folders_leave_out_what_has_a_default(tmp_path: Path) -> None:
    old = {**SMOLLM2, "model_type": "qwen2"}
    del old["num_key_value_heads"], old["tie_word_embeddings"]
    facts = read_model_folder(make_folder(tmp_path / "m", old))
    assert (facts.family, facts.num_kv_heads, facts.tied) == ("qwen2", 9, False)


@pytest.mark.parametrize(
    ("config", "without", "words"),
    [
        (SMOLLM2, "config.json", "config.json cannot be read"),
        (SMOLLM2, "model.safetensors", "lacks model.safetensors or model.safetensors.index.json"),
        (SMOLLM2, "tokenizer.json", "lacks tokenizer.json"),
        ({**SMOLLM2, "model_type": "gpt2"}, "", "'gpt2'; supported are llama, qwen2"),
        ({"model_type": "llama"}, "", "lacks hidden_size"),
        ({**SMOLLM2, "use_sliding_window": True}, "", "sliding-window"),
        ({**SMOLLM2, "hidden_size": "big"}, "", "holds sizes that are none"),
        ({**SMOLLM2, "num_attention_heads": 0}, "", "holds sizes that are none"),
        ({**SMOLLM2, "num_hidden_layers": 0}, "", "sizes that are none: num_hidden_layers is 0"),
        ("{", "", "is not JSON"),
        ("[]", "", "not a model's configuration"),
    ],
)
def test_what_is_no_supported_model_is_refused(
    tmp_path: Path, config: Any, without: str, words: str
) -> None:
    folder = make_folder(tmp_path / "m", config, without)
    with pytest.raises(InputError, match=r"^model\.path: ") as caught:
        read_model_folder(folder)
    assert words in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder"):
        read_model_folder(tmp_path / "nowhere")


def test_tensor_parallel_must_divide_both_kinds_of_heads(tmp_path: Path) -> None:
    facts = read_model_folder(make_folder(tmp_path / "m", SMOLLM2))
    check_tensor_parallel(facts, 3, "trainer.tensor_parallel")
    with pytest.raises(InputError, match=r"trainer\.tensor_parallel: 2 .* 9 .*split by 1, 3$"):
        check_tensor_parallel(facts, 2, "trainer.tensor_parallel")
    with pytest.raises(InputError, match="3 KV heads"):
        check_tensor_parallel(facts, 9, "trainer.tensor_parallel")
