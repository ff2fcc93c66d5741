"""megatron-core in every layout against plain transformers, through the real service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.trainer.model_files import load_tensors
from tests.trainer.batches import random_batch
from tests.trainer.processes import ANSWER_SECONDS, free_addresses, running_ranks
from tests.trainer.reference import ReferenceTrainer, with_rollout_logprobs
from trimaran.config import RunConfig
from trimaran.errors import OutOfOrderError

STEPS = 4
LAYOUTS = [("qwen2", 2, 1), ("qwen2", 1, 2), ("llama", 2, 1)]


@pytest.mark.parametrize(("family", "tensor_parallel", "data_parallel"), LAYOUTS)
def test_logits_and_four_optimizer_steps_equal_plain_transformers(
    family: str,
    tensor_parallel: int,
    data_parallel: int,
    make_config: Callable[..., RunConfig],
    model_folders: dict[str, Path],
    tmp_path: Path,
) -> None:
    addresses = free_addresses(tensor_parallel * data_parallel)
    config = make_config(
        family,
        trainer={
            "tensor_parallel": tensor_parallel,
            "data_parallel": data_parallel,
            "micro_batch_tokens": 40,
        },
        endpoints={"trainer": addresses},
    )
    model = AutoModelForCausalLM.from_pretrained(model_folders[family], dtype=torch.float32)
    reference = ReferenceTrainer(model, config)

    async def train() -> None:
        async with running_ranks(config, tmp_path / "run") as client:
            for step in range(1, STEPS + 1):
                batch = with_rollout_logprobs(model, random_batch(step), 0.7)
                answer = await client.train_batch(batch, ANSWER_SECONDS)
                loss, norm = reference.step(batch)
                # The batch's rollout log-probabilities are the reference model's own.
                assert answer.metrics["trainer/logprob_diff/mean"] < 4e-6
                assert answer.metrics["trainer/loss"] == pytest.approx(loss, abs=2e-6)
                assert answer.metrics["trainer/grad_norm"] == pytest.approx(norm, rel=1e-4)
                assert await client.train_batch(batch, ANSWER_SECONDS) == answer
            with pytest.raises(OutOfOrderError, match="send step 5"):
                await client.train_batch(random_batch(6), ANSWER_SECONDS)
            await client.save_checkpoint(STEPS, ANSWER_SECONDS)
            await client.export_model("model", ANSWER_SECONDS)

    asyncio.run(train())
    shards = sorted(path.name for path in (tmp_path / "run/checkpoints/step-00004").iterdir())
    assert shards[1:] == [f"tensor-rank-{rank}.safetensors" for rank in range(tensor_parallel)]
    trained = load_tensors(tmp_path / "run" / "model", tied=family == "qwen2")
    start = load_tensors(model_folders[family], tied=family == "qwen2")
    for name, tensor in trained.items():
        difference = (tensor - model.state_dict()[name]).abs().max().item()
        moved = (tensor - start[name]).abs().max().item()
        assert difference < 2e-5 < 1e-3 < moved, name
