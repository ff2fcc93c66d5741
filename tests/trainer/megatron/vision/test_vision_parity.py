"""Vision-language models in several layouts against plain transformers, through the real service."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer.checkpoints.model_files import load_tensors
from tests.tiny_vision import write_tiny_vision
from tests.trainer.megatron.vision.test_vision import make_config
from tests.trainer.plain_vision import PlainVision, vision_batch
from tests.trainer.processes import ANSWER_SECONDS, running_ranks, with_addresses
from tests.trainer.reference import ReferenceTrainer, with_rollout_logprobs
from tests.trainer.saved_moments import check_first_moments
from tests.trainer.test_parity import check_offers, name_of, whole_root
from trimaran.config import RunConfig
from trimaran.errors import InputError

pytestmark = pytest.mark.e2e

STEPS = 4
SEQUENCE = {"sequence_parallel": True}
FROZEN = {"freeze": ["*visual.*"], "micro_batch_tokens": 24}
"""Groups are cut, and their pieces read the features that the first one has kept."""
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("qwen2_5_vl", {"tensor_parallel": 2}),
    ("qwen3_vl", {"tensor_parallel": 2} | SEQUENCE),
    ("qwen3_vl_moe", {"tensor_parallel": 2, "expert_parallel": 2} | SEQUENCE),
    ("qwen2_5_vl", {"pipeline_parallel": 2, "pipeline_layers": [0, 4]}),
    ("qwen3_vl", {}),
    ("qwen3_vl", {"tensor_parallel": 2}),
    ("qwen2_5_vl", {"tensor_parallel": 2} | SEQUENCE),
    ("qwen2_5_vl", {"pipeline_parallel": 2}),
    ("qwen2_5_vl", {"pipeline_parallel": 2, "virtual_stages": 2}),
    ("qwen3_vl", {"pipeline_parallel": 2, "data_parallel": 2}),
    ("qwen3_vl", {"context_parallel": 2}),
    ("qwen3_vl", {"context_parallel": 2, "tensor_parallel": 2} | SEQUENCE),
    ("qwen3_vl_moe", {"data_parallel": 2, "expert_parallel": 2}),
    ("qwen2_5_vl", {"data_parallel": 2, "distributed_optimizer": True}),
    ("qwen3_vl", {"tensor_parallel": 2, "recompute": True} | SEQUENCE),
    (
        "qwen2_5_vl",
        {"pipeline_parallel": 3, "pipeline_layers": [0, 3, 1], "recompute": True},
    ),
    ("qwen3_vl", {"pipeline_parallel": 2, "pipeline_layers": [3, 1]}),
    ("qwen3_vl", {"tensor_parallel": 2, "context_parallel": 2} | SEQUENCE | FROZEN),
    ("qwen3_vl", {"pipeline_parallel": 2, "data_parallel": 2} | FROZEN),
    ("qwen2_5_vl", {"pipeline_parallel": 2, "virtual_stages": 2} | FROZEN),
]


def config_for(folder: Path, sizes: dict[str, Any]) -> RunConfig:
    section = {
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        # Of the largest prompt's images and all of its completions: groups in micro-batches of their own.
        "micro_batch_tokens": 40,
        **sizes,
    }
    return with_addresses(make_config(folder, **section))


@pytest.mark.parametrize(("family", "sizes"), LAYOUTS, ids=name_of)
async def test_four_optimizer_steps_equal_plain_transformers(
    family: str, sizes: dict[str, Any], tmp_path: Path
) -> None:
    # Four layers, so that a stage of two has those that deepstack feeds.
    folder = write_tiny_vision(tmp_path / family, family, num_layers=4)
    config = config_for(folder, sizes)
    model = PlainVision(folder)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("freeze" not in sizes or ".visual." not in name)
    reference = ReferenceTrainer(model, config)

    async with running_ranks(config, tmp_path / "run") as client:
        assert client.first.root == whole_root(folder, tied=False)
        for step in range(1, STEPS + 1):
            batch = with_rollout_logprobs(model, model.see(vision_batch(step, folder)), 0.7)
            # Later ones compare weights that have been rounded apart.
            most = 2e-6 if step == 1 else 3e-5
            reference.check(await client.train(batch), batch, logprobs=most, loss=5e-6)
        last = await check_offers(config)
        await client.save_checkpoint(STEPS, ANSWER_SECONDS)
        await client.export_model("model", ANSWER_SECONDS)
    assert whole_root(tmp_path / "run" / "model", tied=False) == last.root
    trained, begun = load_tensors(tmp_path / "run/model", False), load_tensors(folder, False)
    wanted = model.as_folder()
    assert trained.keys() == wanted.keys()
    for name, tensor in trained.items():
        difference = (tensor - wanted[name]).abs()
        moved = (tensor - begun[name]).abs().max().item()
        if "freeze" in sizes and "visual." in name:
            assert torch.equal(tensor, begun[name]), name
            continue
        # AdamW moves an element with a gradient near 0 by its rounding: a fifth of one update at most.
        assert difference.max().item() < 2e-4 < 2e-3 < moved, name
        assert difference.mean().item() < 1e-6, name

    def moment(parameter: torch.nn.Parameter) -> torch.Tensor:
        return reference.first_moment(parameter) if parameter.requires_grad else torch.zeros(0)

    moments = model.as_folder(moment)
    check_first_moments(
        tmp_path / "run", {name: one for name, one in moments.items() if one.numel()}
    )


async def test_what_the_first_stage_alone_sees_in_an_image_ends_the_step_for_all(
    tmp_path: Path,
) -> None:
    """The other stage would wait for it."""
    folder = write_tiny_vision(tmp_path / "model", "qwen2_5_vl", num_layers=4)
    config = config_for(folder, {"pipeline_parallel": 2})
    batch = vision_batch(1, folder)
    wrong = replace(batch.groups[1], group=replace(batch.groups[1].group, image_digest="0f"))
    batch = replace(batch, groups=(batch.groups[0], wrong, *batch.groups[2:]))

    async with running_ranks(config, tmp_path / "run") as client:
        with pytest.raises(InputError, match="row 1: its images give other patches"):
            await client.train(batch)
