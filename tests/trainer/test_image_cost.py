"""What seeing an image costs a rank, beside its share of the layers."""

from __future__ import annotations

import pytest

from services.trainer.megatron.architecture import image_cost
from trimaran.memory.models import QWEN3_30B, QWEN25_VL_7B
from trimaran.memory.stages import stage_costs
from trimaran.parallel import Layout


@pytest.mark.parametrize(("tensor", "context"), [(1, 1), (4, 1), (2, 2)])
def test_an_image_token_costs_what_the_plan_of_stages_says(tensor: int, context: int) -> None:
    layout = Layout(tensor, 1, 1, context)
    [text], [image] = (stage_costs(QWEN25_VL_7B, layout, share, trained=0) for share in (0, 1))
    assert image_cost(QWEN25_VL_7B.facts, tensor * context) == pytest.approx(image / text - 1)
    freeze = ("visual.*",)
    [image] = stage_costs(QWEN25_VL_7B, layout, 1, trained=0, freeze=freeze)
    frozen = image_cost(QWEN25_VL_7B.facts, tensor * context, freeze)
    assert frozen == pytest.approx(image / text - 1)


def test_a_frozen_tower_costs_its_forward_pass_alone() -> None:
    whole = image_cost(QWEN25_VL_7B.facts, 4)
    assert image_cost(QWEN25_VL_7B.facts, 4, ("visual.*",)) == pytest.approx(whole / 3)
    assert image_cost(QWEN25_VL_7B.facts, 4, ("visual.blocks.*",)) == whole


def test_figures_of_the_document() -> None:
    assert [round(image_cost(QWEN25_VL_7B.facts, split), 1) for split in (1, 4)] == [0.4, 1.5]
    assert image_cost(QWEN3_30B.facts, 4) == 0.0
