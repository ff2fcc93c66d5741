"""What seeing an image costs a rank, beside its share of the layers."""

from __future__ import annotations

import pytest

from services.trainer.megatron.architecture import image_cost
from tests.trimaran.model.memory.models import QWEN25_VL_7B
from trimaran.config.parallel import ParallelLayout
from trimaran.model.memory.stages import stage_costs

FACTS = QWEN25_VL_7B.facts


@pytest.mark.parametrize("freeze", [(), ("visual.*",)], ids=["trained", "frozen"])
@pytest.mark.parametrize(
    ("layout", "virtual_stages"),
    [
        (ParallelLayout(), 1),
        (ParallelLayout(tensor=4), 1),
        (ParallelLayout(tensor=2, context=2, data=2), 1),
        (ParallelLayout(pipeline=2), 1),
        (ParallelLayout(tensor=2, pipeline=4, data=2), 1),
        (ParallelLayout(pipeline=2), 2),
        (ParallelLayout(tensor=4, pipeline=2, layers=(0, 28)), 1),
        (ParallelLayout(pipeline=3, layers=(4, 13, 11)), 1),
    ],
    ids=str,
)
def test_an_image_token_costs_what_the_plan_of_stages_says(
    layout: ParallelLayout, virtual_stages: int, freeze: tuple[str, ...]
) -> None:
    text, image = (
        stage_costs(QWEN25_VL_7B, layout, share, trained=0, freeze=freeze) for share in (0, 1)
    )
    cost = image_cost(FACTS, layout, freeze, virtual_stages)
    assert cost == pytest.approx((image[0] - text[0]) / max(text))
    if not layout.layers:  # then the first stage is the slowest one
        assert 1 + cost == pytest.approx(max(image) / max(text))


def test_a_frozen_tower_costs_its_forward_pass_alone() -> None:
    layout = ParallelLayout(tensor=4)
    whole = image_cost(FACTS, layout)
    assert image_cost(FACTS, layout, ("visual.*",)) == pytest.approx(whole / 3)
    assert image_cost(FACTS, layout, ("visual.blocks.*",)) == whole
