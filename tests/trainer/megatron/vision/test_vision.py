"""Vision-language models as one rank, against plain transformers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from PIL import ImageFile

from services.trainer.checkpoints import checkpoint
from services.trainer.checkpoints.convert.convert import (
    checkpoint_to_huggingface,
    huggingface_to_checkpoint,
)
from services.trainer.checkpoints.model_files import load_tensors
from services.trainer.step.batch import PackedBatch
from tests.tiny_model import write_tiny_model
from tests.tiny_vision import FAMILIES, IMAGE, nest_names, write_tiny_vision
from tests.trainer.models import same
from tests.trainer.plain_policy import plain_logprobs
from tests.trainer.plain_vision import PlainVision, vision_batch
from tests.trainer.test_policy import gradients_of, make_policy, packed_of, train_once
from trimaran.config import RunConfig, parse_config
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError
from trimaran.model.folder import read_model_folder

if TYPE_CHECKING:
    from services.trainer.megatron.policy import MegatronPolicy


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vision")
    return {family: write_tiny_vision(root / family, family, num_layers=4) for family in FAMILIES}


def make_config(folder: Path, **trainer: Any) -> RunConfig:
    return parse_config(
        {
            "run": {"groups_per_step": 4},
            "model": {"path": str(folder), "dtype": "float32"},
            "data": {"train": "unused.jsonl"},
            "reward": {"rules": {"unused": 1.0}},
            "rollout": {"max_tokens": 32, "max_prompt_tokens": 32, "temperature": 0.7},
            "trainer": {"device": "cpu", **trainer},
        }
    )


def train(policy: MegatronPolicy, packed: PackedBatch, factors: torch.Tensor) -> dict[str, Any]:
    """The gradients."""
    policy.zero_gradients()
    policy.forward_backward([packed], lambda _, outputs: (outputs.logprobs_M * factors).sum())
    return gradients_of(policy)


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pair_cost", [0.0, float("inf")])
def test_logprobs_and_gradients_equal_plain_transformers(
    family: str, pair_cost: float, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of groups with one image, two and none, and with an image token that was sampled; prompts where they
    stand, and copied. The tower trains as well."""
    from services.trainer.megatron.attention import attention

    monkeypatch.setattr(attention, "PAIR_COST_CPU", pair_cost)
    folder = folders[family]
    batch = vision_batch(1, folder)
    model, policy = PlainVision(folder), make_policy(make_config(folder))
    model.see(batch)
    packed = packed_of(batch.groups)
    plain = plain_logprobs(model, packed, 0.7)
    ours = policy.forward([packed])[0].logprobs_M
    torch.testing.assert_close(ours, plain, rtol=0, atol=5e-6)
    factors = torch.randn(len(packed.targets_M))
    gradients = train(policy, packed, factors)
    (plain * factors).sum().backward()
    wanted = model.as_folder(lambda parameter: parameter.grad)
    assert gradients.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert gradient.abs().max() > 1e-6, name
        scale = gradient.abs().max().item()
        torch.testing.assert_close(gradients[name], gradient, rtol=0, atol=2e-5 * scale, msg=name)


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_activations_give_the_same_gradient_and_are_not_kept(
    family: str, folders: dict[str, Path]
) -> None:
    packed = packed_of(vision_batch(1, folders[family]).groups)
    (all_of_it, gradients), (less, again) = (
        train_once(make_policy(make_config(folders[family], recompute=recompute)), packed)
        for recompute in (False, True)
    )
    for name, gradient in gradients.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(again[name], gradient, rtol=0, atol=1e-5 * scale, msg=name)
    assert less < 0.4 * all_of_it


@pytest.mark.usefixtures("single_rank")
def test_the_reference_sees_the_images_through_its_own_tower(folders: dict[str, Path]) -> None:
    folder = folders["qwen3_vl"]
    tree = make_config(folder).model_dump(mode="json")
    tree["algorithm"] = {"kl": {"coefficient": 0.1}}
    policy = make_policy(parse_config(tree))
    packed = packed_of(vision_batch(1, folder).groups)
    begun = policy.forward([packed])[0].logprobs_M
    assert torch.equal(policy.forward_reference([packed])[0], begun)
    train(policy, packed, torch.ones(len(packed.targets_M)))
    policy.sum_gradients()
    policy.update(1e-3)
    assert torch.equal(policy.forward_reference([packed])[0], begun)
    assert (policy.forward([packed])[0].logprobs_M - begun).abs().max() > 1e-2


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_export_gives_back_what_was_loaded(family: str, tied: bool, tmp_path: Path) -> None:
    folder = write_tiny_vision(tmp_path / family, family, tied=tied)
    loaded = load_tensors(folder, tied=tied)
    assert same(dict(make_policy(make_config(folder)).export()), loaded)


@pytest.mark.usefixtures("single_rank")
def test_either_names_of_a_folder_are_the_same_model_to_the_bit(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    flat = folders["qwen2_5_vl"]
    nested = nest_names(Path(shutil.copytree(flat, tmp_path / "nested")))
    packed = packed_of(vision_batch(1, flat).groups)
    policy = make_policy(make_config(nested))
    logprobs = [
        one.forward([packed])[0].logprobs_M for one in (make_policy(make_config(flat)), policy)
    ]
    assert torch.equal(*logprobs)
    exported = dict(policy.export())
    assert "model.visual.patch_embed.proj.weight" in exported
    assert same(exported, load_tensors(nested, tied=False))
    assert same(*(PlainVision(folder).state_dict() for folder in (flat, nested)))


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("qwen2_5_vl", ParallelLayout(tensor=2)),
        ("qwen3_vl", ParallelLayout(tensor=2, pipeline=2)),
        ("qwen3_vl_moe", ParallelLayout(tensor=2, expert=2)),
    ],
    ids=str,
)
def test_a_checkpoint_of_any_layout_holds_the_tower(
    family: str, layout: ParallelLayout, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = huggingface_to_checkpoint(folders[family], tmp_path / "made", layout, "float32")
    state = checkpoint.read_any(folder)
    assert state.model.facts == read_model_folder(folders[family])
    back = tmp_path / "back"
    root = checkpoint_to_huggingface(folder, state, folders[family], back, "float32")
    assert root == state.root
    assert same(load_tensors(back, False), load_tensors(folders[family], False))


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_later_stage_decodes_no_image_and_knows_the_same_positions(
    family: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy(make_config(folders[family]))
    stage, packed = policy._stages[0], packed_of(vision_batch(1, folders[family]).groups)
    first, wanted = stage._read(packed.images)
    assert first and len(wanted) == 3  # of four prompts; one of them has two images
    stage.pre_process = False

    def decode(_: ImageFile.ImageFile) -> None:
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    seen, found = stage._read(packed.images)
    assert seen is None and found.keys() == wanted.keys()
    for place, (positions, behind) in found.items():
        assert torch.equal(positions, wanted[place][0])
        assert behind == wanted[place][1]
    # What a header tells is looked at here as well.
    prompt = packed.images[1]
    with pytest.raises(InputError, match="row 1: its images take 11 tokens, and its prompt has 12"):
        stage._read((replace(prompt, token_ids=(*prompt.token_ids, IMAGE)),))
    with pytest.raises(InputError, match="row 1: image 1: 8 bytes are no whole PNG"):
        stage._read((replace(prompt, images=(b"no image",)),))


@pytest.mark.usefixtures("single_rank")
def test_images_that_the_rollout_did_not_see_are_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = folders["qwen2_5_vl"]
    policy, batch = make_policy(make_config(folder)), vision_batch(1, folder)

    def refused(words: str, **change: Any) -> None:
        group = replace(batch.groups[1].group, **change)
        packed = packed_of([replace(batch.groups[1], group=group)])
        with pytest.raises(InputError, match=words):
            policy.forward([packed])

    right = batch.groups[1].group
    refused(f"row 1: its images give other patches here .{right.image_digest}", image_digest="0f")
    refused("than in the rollout .none.", image_digest="")
    refused(
        "its images take 11 tokens, and its prompt has 12 places",
        prompt_token_ids=(*right.prompt_token_ids, IMAGE),
    )
    with pytest.raises(InputError, match="row 0: has images, and the model has no vision tower"):
        make_policy(make_config(write_tiny_model(tmp_path / "text"))).forward(
            [packed_of(batch.groups)]
        )
    broken = replace(right.prompt.messages[0], images=(b"no image",))
    refused(
        "row 1: image 1: 8 bytes are no whole PNG", prompt=replace(right.prompt, messages=(broken,))
    )
