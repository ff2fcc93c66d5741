from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from trimaran.config import TrainerSection
from trimaran.errors import InputError
from trimaran.model_folder import ModelFacts
from trimaran.trainer_layout import check_trainer_layout

FACTS = ModelFacts("qwen3", 6, 64, 96, 8, 2, 8, 97, True, 128)


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
@pytest.mark.parametrize("pipeline", [1, 2, 3, 6])
def test_layouts_that_fit(tensor: int, pipeline: int) -> None:
    section = TrainerSection(tensor_parallel=tensor, pipeline_parallel=pipeline, data_parallel=3)
    check_trainer_layout(FACTS, section)


@pytest.mark.parametrize(
    ("facts", "tensor", "words"),
    [
        (FACTS, 3, "3 does not divide the model's 8 attention heads; .* split by 1, 2, 4, 8"),
        (
            replace(FACTS, num_heads=12, num_kv_heads=4),
            6,
            "6 neither divides the model's 4 KV heads nor is a multiple of them; .* by 1, 2, 4",
        ),
        (
            replace(FACTS, intermediate_size=90),
            4,
            "4 does not divide the model's intermediate_size 90; .* split by 1, 2",
        ),
        (replace(FACTS, num_kv_heads=1, head_dim=2), 8, "1 KV heads of 2 channels; .* by 1, 2, 4"),
    ],
)
def test_tensor_parallel_sizes_that_do_not(facts: ModelFacts, tensor: int, words: str) -> None:
    with pytest.raises(InputError, match=rf"^trainer\.tensor_parallel: .*{words}$"):
        check_trainer_layout(facts, TrainerSection(tensor_parallel=tensor))


def test_each_fault_has_a_line() -> None:
    with pytest.raises(InputError) as caught:
        check_trainer_layout(FACTS, TrainerSection(tensor_parallel=3, pipeline_parallel=4))
    first, second = str(caught.value).splitlines()
    assert first.startswith("trainer.tensor_parallel: 3 ")
    assert second == (
        "trainer.pipeline_parallel: 4 does not divide the model's 6 layers; this model can have"
        " 1, 2, 3, 6 stages"
    )


def test_one_tensor_parallel_rank_has_nobody_to_share_tokens_with() -> None:
    TrainerSection(tensor_parallel=2, sequence_parallel=True)
    with pytest.raises(ValidationError, match="sequence_parallel: tensor-parallel ranks share"):
        TrainerSection(sequence_parallel=True)
