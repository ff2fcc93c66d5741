"""Features of images are computed once in a step, where the vision tower is frozen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from services.trainer.step.batch import PackedBatch, StepBatch, pack
from services.trainer.step.learner import StepResult, train_step
from tests.tiny_vision import write_tiny_vision
from tests.trainer.megatron.vision.test_vision import make_config
from tests.trainer.plain_vision import vision_batch
from tests.trainer.test_policy import CPU, make_policy
from trimaran.config import RunConfig, parse_config
from trimaran.types import TrainingBatch

if TYPE_CHECKING:
    from services.trainer.megatron.policy import MegatronPolicy

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
FROZEN = ["*visual.*"]
LORA = {"rank": 2, "alpha": 4.0, "targets": ["q_proj"]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vision")
    return {family: write_tiny_vision(root / family, family, num_layers=4) for family in FAMILIES}


def step_config(folder: Path, epochs: int = 2, **trainer: Any) -> RunConfig:
    """Passes of the policy, of the reference, and of the loss in each epoch."""
    # Of the largest prompt and one of its completions: groups are cut.
    tree = make_config(folder, micro_batch_tokens=24, **trainer).model_dump(mode="json")
    tree["algorithm"] = {"kl": {"coefficient": 0.1}, "epochs": epochs}
    return parse_config(tree)


class Count:
    """Of a tower's runs, and of the images that it sees in each."""

    def __init__(self, policy: MegatronPolicy) -> None:
        self.images: list[int] = []
        for stage in [*policy._stages, *policy._reference]:
            stage.visual.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, tower: Any, args: Any, keywords: dict[str, Any]) -> None:
        self.images.append(len(keywords["grid_thw"]))


def passes(policy: MegatronPolicy, batch: TrainingBatch, config: RunConfig) -> list[StepResult]:
    return [train_step(policy, replace(batch, step=step), config) for step in (1, 2)]


def without_times(results: list[StepResult]) -> list[dict[str, float]]:
    return [
        {name: value for name, value in one.metrics.items() if "second" not in name}
        for one in results
    ]


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_sees_each_image_once_and_gives_the_same(
    family: str, folders: dict[str, Path]
) -> None:
    """Two steps of two epochs, with and without features that are kept. A processor may round otherwise
    where it computes more images together."""
    folder = folders[family]
    config, batch = step_config(folder, freeze=FROZEN), vision_batch(1, folder)
    policy, other = make_policy(config), make_policy(config)
    assert other._images
    other._images.kept = None
    count, more = Count(policy), Count(other)
    results, wanted = (passes(one, batch, config) for one in (policy, other))
    assert sum(count.images) == 2 * 4  # of three prompts, one of which has two
    assert sum(more.images) > 3 * sum(count.images)
    for got, expected in zip(without_times(results), without_times(wanted), strict=True):
        assert got == pytest.approx(expected, rel=1e-3, abs=1e-6)
    exported, plain = dict(policy.export()), dict(other.export())
    assert exported.keys() == plain.keys()
    assert all(torch.allclose(exported[name], plain[name], atol=1e-6) for name in plain)
    assert policy._images and policy._images.kept
    assert not policy._images.kept._kept  # at the end of a step


def pieces_of(batch: TrainingBatch, place: int) -> list[PackedBatch]:
    """A group's completions in micro-batches of their own."""
    step = StepBatch.of(batch.groups, mask_truncated=False)
    return [pack(step, [(place, [index])], CPU) for index in step.members[place]]


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("freeze", [[], ["*visual.blocks.*"]], ids=["all of it", "a part"])
def test_a_tower_that_trains_runs_in_each_pass(freeze: list[str], folders: dict[str, Path]) -> None:
    folder = folders["qwen3_vl"]
    policy = make_policy(make_config(folder, freeze=freeze))
    count, pieces = Count(policy), pieces_of(vision_batch(1, folder), 1)
    policy.forward(pieces)
    policy.forward(pieces)
    assert count.images == [2] * 6


@pytest.mark.usefixtures("single_rank")
def test_a_tower_that_another_run_trained_is_not_the_references(folders: dict[str, Path]) -> None:
    folder = folders["qwen3_vl"]
    state = make_policy(make_config(folder)).state()
    state = {name: tensor + 0.1 for name, tensor in state.items()}
    policy = make_policy(step_config(folder, freeze=FROZEN))
    packed = pieces_of(vision_batch(1, folder), 1)
    begun = policy.forward_reference(packed)
    policy.end_step()
    policy.load_state(state, num_updates=0)
    own = policy.forward(packed)
    assert all(map(torch.equal, policy.forward_reference(packed), begun))
    assert not torch.equal(own[0].logprobs_M, begun[0])
