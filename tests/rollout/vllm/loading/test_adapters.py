"""Adapters beside a frozen model in real vLLM engines: written, computed with and read back."""

from __future__ import annotations

import pytest

from tests.rollout.programs import run_program
from tests.tiny_model import SHAPE, write_tiny_model

pytestmark = pytest.mark.e2e

ENGINES = {
    "llama, tied, one rank": ("llama", True, "bfloat16", 1, 0.1),
    "qwen2, two ranks": ("qwen2", False, "float32", 2, 1e-3),
}
"""With the largest distance between log-probabilities, of which a wrong adapter is far beyond."""


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_computes_with_the_adapters_of_each_version(name: str, tmp_path) -> None:
    family, tied, dtype, tensor_parallel, tolerance = ENGINES[name]
    shape = SHAPE | {"num_key_value_heads": 2, "vocab_size": 16384}
    write_tiny_model(tmp_path, family, tied, dtype, shape=shape)
    found = run_program("adapted", tmp_path, dtype, tensor_parallel)
    for load, by_vllm in (("whole", 1), ("adapters alone", 0), ("whole again", 0)):
        assert found[load]["by vllm"] == by_vllm, load
        assert found[load]["wrong"] == [], load
        assert found[load]["distance"] < tolerance, load
    assert [name for name, _ in found["broken"]] == ["model.layers.1.mlp.down_proj.lora_B.weight"]
