from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from trimaran.config import TrainerSection
from trimaran.errors import InputError
from trimaran.model.folder import ModelFacts
from trimaran.model.trainer_layout import check_trainer_layout
from trimaran.model.vision_tower import VisionFacts

FACTS = ModelFacts("qwen3", 6, 64, 96, 8, 2, 8, 97, True, 128)
WIDE = replace(FACTS, num_heads=12, num_kv_heads=4)
TOWER = VisionFacts(4, 32, 64, 2, 3, 16, 2, 2, 7, num_positions=16, num_deepstack=3)
SEEING = replace(FACTS, vision=TOWER)
EXPERTS = replace(FACTS, num_experts=6, experts_per_token=2, expert_size=10, shared_expert_size=32)
SLICED = {"tp": 2, "etp": 2, "sequence_parallel": True}
SHORT = {
    **{"tp": "tensor_parallel", "pp": "pipeline_parallel", "dp": "data_parallel"},
    **{"cp": "context_parallel", "ep": "expert_parallel", "etp": "expert_tensor_parallel"},
}


def section(sizes: dict[str, Any]) -> TrainerSection:
    return TrainerSection.model_validate({SHORT.get(key, key): n for key, n in sizes.items()})


@pytest.mark.parametrize(
    ("facts", "sizes"),
    [
        *((FACTS, {"tp": size, "pp": 6}) for size in (1, 2, 4, 8)),
        (FACTS, {"cp": 8}),
        (FACTS, {"cp": 2, "distributed_optimizer": True}),
        (FACTS, {"tp": 4, "cp": 2}),
        (FACTS, {"pp": 2, "virtual_stages": 3}),
        (FACTS, {"pp": 4, "pipeline_layers": (0, 3, 2, 1)}),
        (FACTS, {"pp": 2, "pipeline_layers": (6, 0)}),
        (EXPERTS, {"dp": 4, "ep": 2}),
        (EXPERTS, {"tp": 2, "ep": 2, "sequence_parallel": True}),
        (EXPERTS, SLICED),
        (SEEING, {"pp": 2}),
        (SEEING, {"pp": 3, "pipeline_layers": (3, 1, 2)}),
        (replace(SEEING, num_layers=12), {"pp": 2, "virtual_stages": 2}),
        (
            replace(SEEING, vision=replace(TOWER, num_deepstack=0)),
            {"pp": 2, "pipeline_layers": (0, 6)},
        ),
    ],
)
def test_layouts_that_fit(facts: ModelFacts, sizes: dict[str, Any]) -> None:
    check_trainer_layout(facts, section(sizes))


@pytest.mark.parametrize(
    ("facts", "size", "words"),
    [
        (FACTS, 3, "3 does not divide the model's 8 attention heads; .* split by 1, 2, 4, 8"),
        (WIDE, 6, "6 neither divides the model's 4 KV heads nor is a multiple .* by 1, 2, 4"),
        (replace(FACTS, intermediate_size=90), 4, "model's intermediate_size 90; .* split by 1, 2"),
        (replace(FACTS, num_kv_heads=1, head_dim=2), 8, "1 KV heads of 2 channels; .* by 1, 2, 4"),
    ],
)
def test_tensor_parallel_sizes_that_do_not(facts: ModelFacts, size: int, words: str) -> None:
    with pytest.raises(InputError, match=rf"^trainer\.tensor_parallel: .*{words}$"):
        check_trainer_layout(facts, TrainerSection(tensor_parallel=size))


@pytest.mark.parametrize(
    ("facts", "tensor", "context", "words"),
    [
        (FACTS, 4, 4, r"the 2 attention heads .* has 8 and 2, tensor_parallel is 4\); .* 1, 2"),
        (WIDE, 1, 6, "12 attention heads and 4 KV .* 2, 4, 12"),
    ],
)
def test_heads_that_context_parallel_ranks_cannot_divide(
    facts: ModelFacts, tensor: int, context: int, words: str
) -> None:
    with pytest.raises(InputError, match=rf"^trainer\.context_parallel: .*{words}$"):
        check_trainer_layout(facts, section({"tp": tensor, "cp": context}))


def test_each_fault_has_a_line() -> None:
    with pytest.raises(InputError) as caught:
        check_trainer_layout(FACTS, TrainerSection(tensor_parallel=3, pipeline_parallel=4))
    first, second = str(caught.value).splitlines()
    assert first.startswith("trainer.tensor_parallel: 3 ")
    assert second == (
        "trainer.pipeline_parallel: 4 does not divide the model's 6 layers; this model can have"
        " 1, 2, 3, 6 stages, or others with trainer.pipeline_layers"
    )


@pytest.mark.parametrize(
    ("facts", "sizes", "words"),
    [
        (FACTS, {"pp": 2, "virtual_stages": 2}, r"the 3 layers of a .* \(6 / 2\); .* 1, 3$"),
        (FACTS, {"pp": 2, "pipeline_layers": (2, 3)}, r"2 \+ 3 layers are 5, and .* 6$"),
        (SEEING, {"pp": 3}, "stage 2 layers, .* first 3 .* at most 2 stages"),
        (SEEING, {"pp": 2, "pipeline_layers": (2, 4)}, "has 2 layers, .* at least 3$"),
        (FACTS, {"dp": 2, "ep": 2}, "2 shares .* no experts; leave it out"),
        (EXPERTS, {"dp": 4, "ep": 4}, "4 shares .* 6 experts a layer; it can be 1, 2, 3, 6"),
        (EXPERTS, {"tp": 2, "ep": 2}, "sequence_parallel: a model with experts needs it"),
        (EXPERTS, {**SLICED, "etp": 1, "dp": 3, "ep": 3}, "3 x .* 1 is no multiple .*_parallel: 2"),
        (FACTS, SLICED, "expert_tensor_parallel: the model has no experts; leave it out"),
        (replace(EXPERTS, expert_size=25), SLICED, "not divide .* moe_intermediate_size 25"),
        (replace(EXPERTS, family="qwen3_vl_moe"), SLICED, "folder stacks its experts in one"),
        (
            replace(EXPERTS, shared_expert_size=30),
            {"tp": 4, "ep": 4, "sequence_parallel": True},
            "4 does not divide the model's shared_expert_intermediate_size 30",
        ),
    ],
)
def test_layouts_that_do_not_fit(facts: ModelFacts, sizes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_trainer_layout(facts, section(sizes))


THREE = {"pp": 3}


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({**THREE, "pipeline_layers": (3, 3)}, "2 numbers of layers, and pipeline_parallel is 3"),
        ({**THREE, "pipeline_layers": (0, 0, 6)}, "stage 1 would hold nothing; only the first"),
        ({**THREE, "pipeline_layers": (2, 2, 2), "virtual_stages": 2}, "leave out one"),
        ({**THREE, "pipeline_layers": (-1, 3, 4)}, "greater than or equal to 0"),
        ({"virtual_stages": 2}, "virtual_stages: .* pipeline_parallel is 1; leave"),
        ({"tp": 2, "distributed_optimizer": True}, "both sizes are 1; leave"),
        ({"sequence_parallel": True}, "sequence_parallel: tensor-parallel ranks share"),
        ({"tp": 2, "dp": 2, "ep": 3}, r"3 does not divide .* \(2 x 1 x 2 = 4\)"),
        ({"dp": 2, "etp": 2}, "expert_tensor_parallel: 2 does not divide .* 1"),
        ({**SLICED, "dp": 2, "ep": 3}, r"3 x .* 2 does not .*\(2 x 1 x 2 = 4\)"),
    ],
)
def test_layouts_of_no_model(sizes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        section(sizes)
