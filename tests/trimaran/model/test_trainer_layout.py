from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from trimaran.config import TrainerSection
from trimaran.errors import InputError
from trimaran.model.folder import ModelFacts
from trimaran.model.trainer_layout import check_trainer_layout
from trimaran.model.vision_tower import VisionFacts

FACTS = ModelFacts("qwen3", 6, 64, 96, 8, 2, 8, 97, True, 128)
TOWER = VisionFacts(4, 32, 64, 2, 3, 16, 2, 2, 7, num_positions=16, num_deepstack=3)


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


@pytest.mark.parametrize(("tensor", "context"), [(1, 2), (1, 8), (2, 4), (8, 1), (4, 2)])
def test_heads_that_context_parallel_ranks_can_divide(tensor: int, context: int) -> None:
    section = TrainerSection(tensor_parallel=tensor, context_parallel=context)
    check_trainer_layout(FACTS, section)


@pytest.mark.parametrize(
    ("facts", "tensor", "context", "words"),
    [
        (FACTS, 2, 3, "3 ranks cannot divide the 4 attention heads and 1 KV heads .* 1, 2, 4"),
        (FACTS, 4, 4, r"the 2 attention heads .* has 8 and 2, tensor_parallel is 4\); .* 1, 2"),
        (
            replace(FACTS, num_heads=12, num_kv_heads=4),
            1,
            6,
            "12 attention heads and 4 KV .* 2, 4, 12",
        ),
    ],
)
def test_heads_that_they_cannot(facts: ModelFacts, tensor: int, context: int, words: str) -> None:
    section = TrainerSection(tensor_parallel=tensor, context_parallel=context)
    with pytest.raises(InputError, match=rf"^trainer\.context_parallel: .*{words}$"):
        check_trainer_layout(facts, section)


def test_each_fault_has_a_line() -> None:
    with pytest.raises(InputError) as caught:
        check_trainer_layout(FACTS, TrainerSection(tensor_parallel=3, pipeline_parallel=4))
    first, second = str(caught.value).splitlines()
    assert first.startswith("trainer.tensor_parallel: 3 ")
    assert second == (
        "trainer.pipeline_parallel: 4 does not divide the model's 6 layers; this model can have"
        " 1, 2, 3, 6 stages, or others with trainer.pipeline_layers"
    )


def test_stages_that_do_not_divide_the_layers_of_a_rank() -> None:
    check_trainer_layout(FACTS, TrainerSection(pipeline_parallel=2, virtual_stages=3))
    words = r"virtual_stages: 2 does not divide the 3 layers of a pipeline rank \(6 / 2\); .* 1, 3$"
    with pytest.raises(InputError, match=words):
        check_trainer_layout(FACTS, TrainerSection(pipeline_parallel=2, virtual_stages=2))


def test_stages_with_layers_of_their_own() -> None:
    check_trainer_layout(FACTS, TrainerSection(pipeline_parallel=4, pipeline_layers=(0, 3, 2, 1)))
    check_trainer_layout(FACTS, TrainerSection(pipeline_parallel=2, pipeline_layers=(6, 0)))
    words = r"^trainer\.pipeline_layers: 2 \+ 3 layers are 5, and the model has 6$"
    with pytest.raises(InputError, match=words):
        check_trainer_layout(FACTS, TrainerSection(pipeline_parallel=2, pipeline_layers=(2, 3)))


@pytest.mark.parametrize(
    ("layers", "virtual", "words"),
    [
        ((3, 3), 1, "2 numbers of layers, and pipeline_parallel is 3; give one for each stage"),
        ((0, 0, 6), 1, "stage 1 would hold nothing; only the first stage"),
        ((2, 2, 2), 2, "with virtual_stages all stages have equally many layers; leave out one"),
        ((-1, 3, 4), 1, "greater than or equal to 0"),
    ],
)
def test_stages_that_there_cannot_be(layers: tuple[int, ...], virtual: int, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainerSection(pipeline_parallel=3, pipeline_layers=layers, virtual_stages=virtual)


def test_what_needs_other_ranks() -> None:
    TrainerSection(pipeline_parallel=2, virtual_stages=2)
    with pytest.raises(ValidationError, match="virtual_stages: .* pipeline_parallel is 1; leave"):
        TrainerSection(virtual_stages=2)
    TrainerSection(context_parallel=2, distributed_optimizer=True)
    with pytest.raises(ValidationError, match="distributed_optimizer: .* both sizes are 1; leave"):
        TrainerSection(tensor_parallel=2, distributed_optimizer=True)


def test_one_tensor_parallel_rank_has_nobody_to_share_tokens_with() -> None:
    TrainerSection(tensor_parallel=2, sequence_parallel=True)
    with pytest.raises(ValidationError, match="sequence_parallel: tensor-parallel ranks share"):
        TrainerSection(sequence_parallel=True)


EXPERTS = replace(FACTS, num_experts=6, experts_per_token=2, expert_size=10, shared_expert_size=32)


@pytest.mark.parametrize(("tensor", "data", "expert"), [(1, 4, 2), (2, 3, 6), (2, 1, 2), (1, 1, 1)])
def test_layouts_that_fit_experts(tensor: int, data: int, expert: int) -> None:
    section = TrainerSection(
        tensor_parallel=tensor,
        data_parallel=data,
        expert_parallel=expert,
        sequence_parallel=tensor > 1,
    )
    check_trainer_layout(EXPERTS, section)


SLICED = {"tensor_parallel": 2, "expert_tensor_parallel": 2, "sequence_parallel": True}


def test_slices_of_experts_fit_where_they_divide_them() -> None:
    check_trainer_layout(EXPERTS, TrainerSection.model_validate(SLICED))


@pytest.mark.parametrize(
    ("facts", "sizes", "words"),
    [
        (
            FACTS,
            {"data_parallel": 2, "expert_parallel": 2},
            "2 shares .*, and the model has no experts; leave it out",
        ),
        (
            EXPERTS,
            {"data_parallel": 4, "expert_parallel": 4},
            "4 shares .* has 6 experts a layer; it can be 1, 2, 3, 6",
        ),
        (
            EXPERTS,
            {"tensor_parallel": 2, "expert_parallel": 2},
            r"sequence_parallel: a model with experts needs it .* \(it is 2\); set it to true",
        ),
        (
            EXPERTS,
            {
                "tensor_parallel": 2,
                "data_parallel": 3,
                "expert_parallel": 3,
                "sequence_parallel": True,
            },
            "3 x expert_tensor_parallel 1 is no multiple of tensor_parallel 2, .*_tensor_parallel: 2",
        ),
        (FACTS, SLICED, "expert_tensor_parallel: the model has no experts; leave it out"),
        (
            replace(EXPERTS, expert_size=25),
            SLICED,
            "expert_tensor_parallel: 2 does not divide the model's moe_intermediate_size 25",
        ),
        (
            replace(EXPERTS, family="qwen3_vl_moe"),
            SLICED,
            "2 slices, and this model's folder stacks its experts in one tensor",
        ),
        (
            replace(EXPERTS, shared_expert_size=30),
            {"tensor_parallel": 4, "expert_parallel": 4, "sequence_parallel": True},
            "4 does not divide the model's shared_expert_intermediate_size 30",
        ),
    ],
)
def test_layouts_that_do_not_fit_experts(
    facts: ModelFacts, sizes: dict[str, int], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        check_trainer_layout(facts, TrainerSection.model_validate(sizes))


def test_shares_of_experts_lie_on_ranks_that_there_are() -> None:
    words = (
        r"3 does not divide tensor_parallel x context_parallel x data_parallel \(2 x 1 x 2 = 4\)"
    )
    with pytest.raises(ValidationError, match=words):
        TrainerSection(
            tensor_parallel=2, data_parallel=2, expert_parallel=3, sequence_parallel=True
        )


def test_slices_of_experts_divide_tensor_parallel_ranks() -> None:
    with pytest.raises(ValidationError, match="expert_tensor_parallel: 2 does not divide .* 1"):
        TrainerSection(data_parallel=2, expert_tensor_parallel=2)
    words = r"3 x expert_tensor_parallel 2 does not divide .* \(2 x 1 x 2 = 4\)"
    with pytest.raises(ValidationError, match=words):
        TrainerSection(
            tensor_parallel=2, data_parallel=2, expert_parallel=3, expert_tensor_parallel=2
        )


@pytest.mark.parametrize(
    ("pipeline", "virtual", "fits"), [(1, 1, True), (2, 1, True), (1, 2, True), (3, 1, False)]
)
def test_a_tower_feeds_layers_of_its_own_stage(pipeline: int, virtual: int, fits: bool) -> None:
    facts = replace(FACTS, vision=TOWER)
    section = TrainerSection(pipeline_parallel=pipeline)
    if virtual > 1:
        facts, section = (
            replace(facts, num_layers=12),
            TrainerSection(pipeline_parallel=2, virtual_stages=virtual),
        )
    if fits:
        check_trainer_layout(facts, section)
        return
    words = "3 ranks with virtual_stages 1 .* first stage 2 layers, .* first 3 .* at most 2 stages"
    with pytest.raises(InputError, match=words):
        check_trainer_layout(facts, section)


def test_a_tower_feeds_layers_of_a_stage_with_layers_of_its_own() -> None:
    facts = replace(FACTS, vision=TOWER)
    check_trainer_layout(facts, TrainerSection(pipeline_parallel=3, pipeline_layers=(3, 1, 2)))
    words = (
        r"^trainer\.pipeline_layers: the first stage has 2 layers, .* it, .* first 3 .* at least 3$"
    )
    with pytest.raises(InputError, match=words):
        check_trainer_layout(facts, TrainerSection(pipeline_parallel=2, pipeline_layers=(2, 4)))
    plain = replace(facts, vision=replace(TOWER, num_deepstack=0))
    check_trainer_layout(plain, TrainerSection(pipeline_parallel=2, pipeline_layers=(0, 6)))
