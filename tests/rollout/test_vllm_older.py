"""What vLLM 0.23 does otherwise, played on the one that is installed; `make contract-run` has the real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.rollout.vllm.worker import WorkerExtension

pytestmark = pytest.mark.e2e


def test_a_reload_that_the_worker_forgot_is_ended() -> None:
    """Its own worker does: it clears its mark of an open update when that fails."""
    from vllm.model_executor.model_loader.reload import (
        initialize_layerwise_reload,
        record_metadata_for_reloading,
    )

    model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    record_metadata_for_reloading(model)
    initialize_layerwise_reload(model)
    assert model[0].weight.is_meta
    worker: Any = WorkerExtension()
    worker.model_runner = SimpleNamespace(get_model=lambda: model)
    worker.model_config = SimpleNamespace(dtype=torch.float32)
    worker._weight_update_active = False
    for _ in range(2):  # nothing is left to do for the second one
        worker.abandon_update()
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_packed_copy_of_an_embedding_that_is_the_output_layer_is_read() -> None:
    """Its Qwen2 is so where the output layer is tied."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    from services.rollout.vllm.loading.modules import ParameterPlace
    from services.rollout.vllm.loading.read_back import _read_copies

    packed = torch.randn(4, 8)
    embedding: Any = VocabParallelEmbedding.__new__(VocabParallelEmbedding)
    torch.nn.Module.__init__(embedding)
    embedding.weight = torch.nn.Parameter(torch.randn(4, 8))
    embedding.embedding_dim, embedding.params_dtype = 8, torch.float32
    embedding.cpu_linear = None
    embedding.quant_method = SimpleNamespace(apply=lambda _, rows, bias: rows @ packed.t())
    model: Any = torch.nn.Module()
    model.embed_tokens = model.lm_head = embedding
    reading = _read_copies(model, True, ParameterPlace(embedding, "embed_tokens", "weight", None))
    try:
        while True:
            next(reading)
    except StopIteration as end:
        looked_up, computed = end.value
    assert looked_up is embedding.weight
    assert torch.equal(computed, packed)
