"""megatron-core in every layout against plain transformers, through the real service."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.trainer.checkpoints.model_files import load_tensors
from tests.trainer.batches import random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.episodes import random_episodes
from tests.trainer.models import DEEP, TIED, unfused
from tests.trainer.processes import ANSWER_SECONDS, Rank0, running_ranks, with_addresses
from tests.trainer.reference import ReferenceTrainer, with_rollout_logprobs
from tests.trainer.saved_moments import check_first_moments
from trimaran.clients import TrainerClient
from trimaran.config import RunConfig
from trimaran.errors import OutOfOrderError, UnprovenError
from trimaran.model.folder import read_model_folder
from trimaran.types import Caller, Manifest, PolicyVersion
from weights.sending.snapshot import TensorPart, take_snapshot
from weights.version.grid import cut_tensors
from weights.version.layout import numbers_of

pytestmark = pytest.mark.e2e

STEPS = 4
SEQUENCE = {"sequence_parallel": True}
SPLIT = {"distributed_optimizer": True}
SLICED = {"tensor_parallel": 2, "expert_tensor_parallel": 2}
OFFLOAD = {"offload": ["optimizer", "gradients"]}
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"tensor_parallel": 2} | SEQUENCE),
    ("qwen3", {"tensor_parallel": 2}),
    ("qwen2", {"data_parallel": 2}),
    ("qwen2", {"pipeline_parallel": 2}),
    ("qwen3_moe", {"tensor_parallel": 2, "expert_parallel": 2} | SEQUENCE),
    ("qwen2_moe", {"tensor_parallel": 2, "expert_tensor_parallel": 2} | SEQUENCE),
    ("qwen3", {"context_parallel": 2, "tensor_parallel": 2} | SEQUENCE),
    ("qwen2", {"context_parallel": 2, "pipeline_parallel": 2, "recompute": "selective"}),
    ("llama", {"context_parallel": 2, "data_parallel": 2} | SPLIT),
    ("qwen3_moe", {"data_parallel": 4, "expert_parallel": 2} | SPLIT),
    ("qwen3", {"tensor_parallel": 2, "data_parallel": 2} | SEQUENCE | SPLIT),
    ("deepseek_v3", {"tensor_parallel": 2, "expert_parallel": 2} | SEQUENCE),
    ("deepseek_v3", {"pipeline_parallel": 2, "expert_parallel": 2, "data_parallel": 2} | SPLIT),
    ("deepseek_v3", SLICED | {"context_parallel": 2, "recompute": "selective"} | SEQUENCE),
    ("gemma3_text", {"tensor_parallel": 2, "pipeline_parallel": 2} | SEQUENCE),
    ("gemma3_text", {"context_parallel": 2, "data_parallel": 2, "recompute": True} | SPLIT),
    ("mistral", {"tensor_parallel": 2, "pipeline_parallel": 2} | SEQUENCE),
    ("glm4_moe", {"tensor_parallel": 2, "expert_parallel": 2} | SEQUENCE),
    ("glm4_moe", {"pipeline_parallel": 2, "expert_parallel": 2, "data_parallel": 2} | SPLIT),
    (DEEP, {"pipeline_parallel": 3, "pipeline_layers": [0, 4, 0]}),
    (DEEP, {"pipeline_parallel": 2, "virtual_stages": 2, "data_parallel": 2} | SPLIT),
    (DEEP, {"tensor_parallel": 2, "pipeline_parallel": 2, "virtual_stages": 2} | SEQUENCE),
    ("llama", {"data_parallel": 2, "tensor_parallel": 2} | SPLIT | OFFLOAD),
    ("qwen2_moe", {"pipeline_parallel": 2, "expert_parallel": 2, "data_parallel": 2} | OFFLOAD),
    (
        "qwen3_moe",
        SLICED | {"data_parallel": 2, "expert_parallel": 2, "recompute": True} | SEQUENCE,
    ),
    ("qwen2_moe", SLICED | {"context_parallel": 2, "expert_parallel": 2} | SEQUENCE | OFFLOAD),
]


def whole_root(folder: Path, tied: bool) -> str:
    """Of the folder's weights, with nothing split."""
    facts = read_model_folder(folder)
    loaded = load_tensors(folder, tied)
    tensors = cut_tensors(((name, "F32", tuple(t.shape)) for name, t in loaded.items()), facts)
    parts = [TensorPart(t.name, 0, t.shape[t.axis], loaded[t.name]) for t in tensors]
    num_blocks = sum(tensor.num_blocks for tensor in tensors)
    return take_snapshot(tensors, parts, ((0, num_blocks),)).manifest.root


async def check_offers(config: RunConfig) -> PolicyVersion:
    """Each rank that sends knows the version and the whole manifest, and offers a share of it."""
    shares: list[int] = []
    known: list[tuple[PolicyVersion, Manifest]] = []
    for place in config.trainer.layout.senders:
        address = config.endpoints.trainer[place.rank]
        async with TrainerClient(address, Caller("run", 1)) as client:
            known.append(await client.get_policy_version(ANSWER_SECONDS))
            offered, offer = await client.get_offer(ANSWER_SECONDS)
            assert offered == known[-1][0]
            shares += numbers_of(offer.blocks)
    policy, manifest = known[0]
    assert manifest.root == policy.root
    assert all(one == known[0] for one in known)
    assert sorted(shares) == list(range(manifest.num_blocks))
    return policy


async def train_once(client: Rank0, step: int, root: str = "") -> str:
    """The root of the new version; `root`: of that which made the tokens."""
    return (await client.train(random_batch(step), root)).version.root


@pytest.mark.parametrize(
    "sizes",
    [{"pipeline_parallel": 2, "data_parallel": 2} | SPLIT, {"tensor_parallel": 4}],
)
async def test_a_resumed_step_is_that_of_the_uninterrupted_run_and_of_another_run(
    sizes: dict[str, Any], make_config: MakeConfig, tmp_path: Path
) -> None:
    run = {"groups_per_step": 4, "deterministic": True}
    config = make_config("qwen2", run=run, trainer={**sizes, "micro_batch_tokens": 40})
    async with running_ranks(config, tmp_path / "run") as client:
        start = client.first.root
        roots = [await train_once(client, step) for step in (1, 2)]
        await client.save_checkpoint(2, ANSWER_SECONDS)
        third = await train_once(client, 3)
    async with running_ranks(config, tmp_path / "run") as client:
        assert (client.first.version.step, client.first.root) == (2, roots[-1])
        assert await train_once(client, 3, start) == third
    async with running_ranks(config, tmp_path / "other") as client:
        assert [await train_once(client, step) for step in (1, 2)] == roots
    assert len({start, *roots, third}) == 4


SAME = (
    *("trainer/loss", "trainer/grad_norm", "trainer/kl", "trainer/policy/clipped/share"),
    "trainer/computed/exact_entropy",
)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen2", {"pipeline_parallel": 2}),
        ("qwen3_moe", {"data_parallel": 2, "expert_parallel": 2}),
        ("llama", {"context_parallel": 2}),
        (DEEP, {"pipeline_parallel": 2, "virtual_stages": 2, "fp32_head": True}),
        ("qwen3", {"tensor_parallel": 2, "recompute": True} | SEQUENCE),
        ("llama", {"data_parallel": 2, "tensor_parallel": 2} | SPLIT | OFFLOAD),
        ("qwen2_moe", {"context_parallel": 2, "expert_parallel": 2}),
    ],
    ids=lambda value: name_of(value),
)
async def test_old_and_reference_logprobs_reach_all_ranks(
    family: str, sizes: dict[str, Any], make_config: MakeConfig, tmp_path: Path
) -> None:
    """Two updates a batch, whose ratios need the log-probabilities of before, and a KL term; so does the number
    of steps, by which the learning rate falls. Neither the ranks nor the updates divide the groups."""

    async def train(name: str, split: dict[str, Any]) -> list[list[float]]:
        trainer = {**split, "micro_batch_tokens": 40, "schedule": "linear"}
        algorithm = {
            "updates_per_batch": 2,
            "kl": {"coefficient": 0.2, "offload": "offload" in split},
            "entropy": {"coefficient": 0.01},
        }
        run = {"groups_per_step": 5}
        config = make_config(family, run=run, trainer=trainer, algorithm=algorithm)
        batches = [replace(random_batch(step, num_groups=5), num_steps=10) for step in (1, 2)]
        async with running_ranks(config, tmp_path / name) as client:
            answers = [await client.train(batch) for batch in batches]
        return [[answer.metrics[key] for key in SAME] for answer in answers]

    alone, together = await train("alone", {}), await train("together", sizes)
    assert together == [pytest.approx(row, rel=2e-4, abs=2e-6) for row in alone]
    assert alone[1][SAME.index("trainer/kl")] > 1e-4


def name_of(value: Any) -> str:
    """Example: "tensor_parallel=2" """
    if isinstance(value, str):
        return value
    return ",".join(f"{key}={size}" for key, size in value.items())


@pytest.mark.parametrize(("family", "sizes"), LAYOUTS, ids=name_of)
async def test_logits_and_four_optimizer_steps_equal_plain_transformers(
    family: str,
    sizes: dict[str, Any],
    make_config: MakeConfig,
    model_folders: dict[str, Path],
    tmp_path: Path,
) -> None:
    """Of answers and of episodes in turn."""
    config = with_addresses(make_config(family, trainer={**sizes, "micro_batch_tokens": 40}))
    model = AutoModelForCausalLM.from_pretrained(model_folders[family], dtype=torch.float32)
    reference = ReferenceTrainer(model, config)

    async with running_ranks(config, tmp_path / "run") as client:
        assert client.first.root == whole_root(model_folders[family], tied=family in TIED)
        for step in range(1, STEPS + 1):
            made = random_batch(step) if step % 2 else random_episodes(step)
            batch = with_rollout_logprobs(model, made, 0.7)
            with pytest.raises(UnprovenError, match=r"group 0: tokens of r at version 0\.0"):
                await client.train_batch(batch, ANSWER_SECONDS)
            answer = await client.train(batch)
            reference.check(answer, batch)
            assert await client.train_batch(batch, ANSWER_SECONDS) == answer
        with pytest.raises(OutOfOrderError, match="send step 5"):
            await client.train(random_batch(6))
        last = await check_offers(config)
        await client.save_checkpoint(STEPS, ANSWER_SECONDS)
        await client.export_model("model", ANSWER_SECONDS)
    shards = sorted(path.name for path in (tmp_path / "run/checkpoints/step-00004").iterdir())
    layout = config.trainer.layout
    count = layout.num_ranks if config.trainer.distributed_optimizer else layout.num_shards
    assert shards[:-1] == [f"shard-{number}.safetensors" for number in range(count)]
    trained = load_tensors(tmp_path / "run" / "model", tied=family in TIED)
    start = load_tensors(model_folders[family], tied=family in TIED)
    wanted = unfused(model.state_dict())
    for name, tensor in trained.items():
        difference = (tensor - wanted[name]).abs().max().item()
        moved = (tensor - start[name]).abs().max().item()
        if name.endswith("correction_bias"):
            assert moved == 0
        else:
            assert difference < 3e-5 < 1e-3 < moved, name
    assert whole_root(tmp_path / "run" / "model", tied=family in TIED) == last.root
    moments = {name: reference.first_moment(one) for name, one in model.named_parameters()}
    check_first_moments(tmp_path / "run", unfused(moments))
