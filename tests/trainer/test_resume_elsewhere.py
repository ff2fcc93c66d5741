"""A run that goes on in another layout takes the same next steps, through the real service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer.checkpoints.model_files import load_tensors
from tests.trainer.batches import random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.models import TIED
from tests.trainer.processes import ANSWER_SECONDS, running_ranks
from tests.trainer.test_parity import SEQUENCE, SPLIT, name_of
from trimaran.config import RunConfig
from trimaran.types import LedgerEnd

pytestmark = pytest.mark.e2e
END = LedgerEnd(17, "a" * 64)
Sizes = dict[str, Any]
LORA: Sizes = {"lora": {"rank": 4}, "learning_rate": 1e-2}
CASES: list[tuple[str, Sizes, Sizes]] = [
    ("qwen2", {"data_parallel": 2} | SPLIT, {"tensor_parallel": 2}),
    (
        "qwen3_moe",
        {"data_parallel": 2, "expert_parallel": 2},
        {"tensor_parallel": 2, "expert_parallel": 2} | SEQUENCE,
    ),
    ("qwen2", LORA, {"tensor_parallel": 2, "pipeline_parallel": 2} | LORA),
    ("qwen2", {"tensor_parallel": 2}, {"pipeline_parallel": 2}),
    ("qwen2", {"pipeline_parallel": 2}, {"data_parallel": 2, "tensor_parallel": 2} | SPLIT),
    ("llama", {"data_parallel": 2} | SPLIT, {"data_parallel": 4} | SPLIT),
    ("qwen2", {"tensor_parallel": 4}, {"data_parallel": 2, "pipeline_parallel": 2}),
    ("llama", {"pipeline_parallel": 2}, {"tensor_parallel": 2, "pipeline_parallel": 2} | SEQUENCE),
    ("qwen3", {}, {"tensor_parallel": 4}),
    ("qwen3_moe", {"data_parallel": 4, "expert_parallel": 4}, {"pipeline_parallel": 2}),
    (
        "qwen3_moe",
        {"tensor_parallel": 2, "expert_tensor_parallel": 2, "data_parallel": 2} | SEQUENCE | SPLIT,
        {"data_parallel": 2, "expert_parallel": 2},
    ),
    ("qwen2", {"pipeline_parallel": 2, "pipeline_layers": [0, 2]}, {"pipeline_parallel": 2}),
    (
        *("llama", {"tensor_parallel": 2}),
        {"pipeline_parallel": 2, "pipeline_layers": [2, 0], "data_parallel": 2} | SPLIT,
    ),
    ("llama", LORA, {"tensor_parallel": 2} | SEQUENCE | LORA),
    ("qwen2", LORA, {"pipeline_parallel": 2} | LORA),
    ("qwen2", {"data_parallel": 2} | SPLIT | LORA, {"tensor_parallel": 2} | LORA),
]
SAME = ("trainer/loss", "trainer/grad_norm", "trainer/kl")


@pytest.mark.parametrize(("family", "first", "then"), CASES, ids=name_of)
async def test_the_next_steps_in_another_layout_are_those_of_the_undisturbed_run(
    family: str, first: Sizes, then: Sizes, make_config: MakeConfig, tmp_path: Path
) -> None:
    def make(sizes: Sizes) -> RunConfig:
        trainer = {**sizes, "micro_batch_tokens": 40}
        adaptive = {"target": 1e-5, "horizon": 100}
        algorithm = {"updates_per_batch": 2, "kl": {"coefficient": 0.2, "adaptive": adaptive}}
        return make_config(family, trainer=trainer, algorithm=algorithm)

    async with running_ranks(make(first), tmp_path / "run") as client:
        start = client.first.root
        saved = [await client.train(random_batch(step)) for step in (1, 2)][-1]
        await client.save_checkpoint(2, ANSWER_SECONDS, END)
        undisturbed = [await client.train(random_batch(step)) for step in (3, 4)]
        await client.export_model("undisturbed", ANSWER_SECONDS)
    async with running_ranks(make(then), tmp_path / "run") as client:
        assert client.first == saved.version  # bit for bit
        assert await client.get_ledger_end(ANSWER_SECONDS) == END
        assert (await client.train(random_batch(2), start)).metrics == saved.metrics
        again = [await client.train(random_batch(step), start) for step in (3, 4)]
        await client.export_model("resumed", ANSWER_SECONDS)
        await client.save_checkpoint(4, ANSWER_SECONDS)
    for one, other in zip(again, undisturbed, strict=True):
        for key in SAME:
            wanted = pytest.approx(other.metrics[key], rel=2e-4, abs=2e-6)
            assert one.metrics[key] == wanted, key
        key = "trainer/kl_coefficient"
        assert one.metrics[key] == pytest.approx(other.metrics[key], rel=1e-9)
        assert one.metrics[key] != saved.metrics[key]  # it adapts
    # And what the new layout saved is read by it.
    async with running_ranks(make(then), tmp_path / "run") as client:
        assert client.first == again[-1].version
    tied = family in TIED
    wanted = load_tensors(tmp_path / "run/undisturbed", tied)
    for name, tensor in load_tensors(tmp_path / "run/resumed", tied).items():
        torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=2e-5, msg=name)


THAWED: list[tuple[str, Sizes, Sizes]] = [
    ("llama", {"data_parallel": 2} | SPLIT, {"tensor_parallel": 2}),
    ("qwen2", {"tensor_parallel": 2}, {"pipeline_parallel": 2}),
    ("llama", {"data_parallel": 2} | SPLIT, {"data_parallel": 2} | SPLIT),
    ("qwen2", {"pipeline_parallel": 2}, {"data_parallel": 2} | SPLIT),
]


@pytest.mark.parametrize(("family", "first", "then"), THAWED, ids=name_of)
async def test_what_is_frozen_and_had_trained_in_the_run_before_is_read_in_another_layout(
    family: str, first: Sizes, then: Sizes, make_config: MakeConfig, tmp_path: Path
) -> None:
    def make(sizes: Sizes) -> RunConfig:
        return make_config(family, trainer=sizes, model={"dtype": "bfloat16"})

    async with running_ranks(make({}), tmp_path / "before") as client:
        await client.train(random_batch(1))
        await client.save_checkpoint(1, ANSWER_SECONDS)
    freeze = {"freeze": ["model.embed_tokens.weight", "*.mlp.*"]}
    begin = freeze | {"load": str(tmp_path / "before")}
    async with running_ranks(make(first | begin), tmp_path / "run") as client:
        answer = await client.train(random_batch(1))
        await client.save_checkpoint(1, ANSWER_SECONDS)
    async with running_ranks(make(then | freeze), tmp_path / "run") as client:
        assert client.first == answer.version
