"""Patterns of names, against the names in a model's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trimaran.errors import InputError
from trimaran.model.freezing import check_patterns, is_frozen
from trimaran.model.tensor_names import read_names

NAMES = ["model.embed_tokens.weight"] + [
    f"model.layers.{layer}.mlp.{name}.weight" for layer in range(2) for name in ("gate", "up_proj")
]


def test_a_star_is_any_text() -> None:
    assert is_frozen("model.layers.11.mlp.gate.weight", ["*.mlp.gate.weight"])
    assert not is_frozen("model.layers.11.mlp.gate_proj.weight", ["*.mlp.gate.weight"])
    assert not is_frozen("anything", [])


def test_a_pattern_without_a_match_is_refused_with_what_is_near() -> None:
    check_patterns(["model.embed*", "*.gate.*"], NAMES)
    with pytest.raises(InputError) as caught:
        check_patterns(["model.embed*", "*.mlp.gates.weight"], NAMES)
    assert str(caught.value) == (
        "trainer.freeze: '*.mlp.gates.weight' matches no tensor of the model; near it are"
        " model.layers.*.mlp.gate.weight, model.layers.*.mlp.up_proj.weight,"
        " model.embed_tokens.weight"
    )


def test_names_of_a_folder_with_one_file_and_with_several(tmp_path: Path) -> None:
    save_file({name: torch.zeros(1) for name in NAMES}, tmp_path / "model.safetensors")
    assert sorted(read_names(tmp_path)) == sorted(NAMES)
    index = {"metadata": {}, "weight_map": dict.fromkeys(NAMES[:2], "a.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_names(tmp_path) == NAMES[:2]


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8 + b"{", b"\x02" + bytes(7) + b"{]", b"\x03" + bytes(7) + b"[1]"]
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors: cannot be read"):
        read_names(tmp_path)
