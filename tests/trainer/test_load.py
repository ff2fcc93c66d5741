"""A new run that begins with what another one has saved (`trainer.load`), and models beside checkpoints."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from services.trainer.checkpoints.checkpoint import read_any
from services.trainer.checkpoints.checkpoint_folder import newest
from services.trainer.checkpoints.convert.convert import (
    checkpoint_to_huggingface,
    huggingface_to_checkpoint,
)
from services.trainer.checkpoints.model_files import WEIGHTS, load_tensors
from services.trainer.rank import TrainerRank
from tests.trainer.batches import random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.models import same
from tests.trainer.test_policy import make_policy, whole_batch
from tests.trainer.test_rank import save, started
from trimaran.config import RunConfig
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError
from trimaran.types import VersionId

pytestmark = pytest.mark.usefixtures("single_rank")


def policy_of(rank: TrainerRank) -> Any:
    return rank._policy


async def first_run(config: RunConfig, folder: Path) -> tuple[Path, str, str]:
    """Its checkpoint of step 2, the root there, and that after a third step."""
    async with started(config, folder) as rank:
        saved = [await rank.train(random_batch(step)) for step in (1, 2)][-1]
        path = await save(rank, 2)
        return path, saved.version.root, (await rank.train(random_batch(3))).version.root


@pytest.mark.parametrize("optimizer", [True, False])
@pytest.mark.parametrize("named", ["checkpoint", "run"])
async def test_a_run_begins_with_the_weights_and_moments_of_another(
    make_config: MakeConfig, tmp_path: Path, optimizer: bool, named: str
) -> None:
    path, root, next_root = await first_run(make_config(), tmp_path / "first")
    load = path if named == "checkpoint" else tmp_path / "first"
    config = make_config(trainer={"load": str(load), "load_optimizer": optimizer})
    async with started(config, tmp_path / "second") as rank:
        assert (rank.version.version, rank.version.root) == (VersionId(0, 0), root)
        assert policy_of(rank).num_updates == (2 if optimizer else 0)
        answer = await rank.train(replace(random_batch(3), step=1))
        assert (answer.version.root == next_root) == optimizer
        await save(rank, 1)
    shutil.rmtree(tmp_path / "first")  # a resume needs only its own
    async with started(config, tmp_path / "second") as rank:
        assert rank.version == answer.version


async def test_the_reference_is_that_of_the_model_folder(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    algorithm = {"kl": {"coefficient": 0.1}}

    path, *_ = await first_run(make_config(algorithm=algorithm), tmp_path / "first")
    packed = whole_batch()
    config = make_config(algorithm=algorithm, trainer={"load": str(path)})
    async with started(config, tmp_path / "second") as rank:
        [reference] = policy_of(rank).forward_reference([packed])
        [own] = policy_of(rank).forward([packed])
    [begin] = make_policy(make_config()).forward([packed])
    assert torch.equal(reference, begin.logprobs_M)
    assert not torch.equal(own.logprobs_M, begin.logprobs_M)


async def test_a_checkpoint_of_another_layout_and_dtype_is_loaded(
    make_config: MakeConfig, model_folders: dict[str, Path], tmp_path: Path
) -> None:
    """As `trimaran convert` makes one."""
    layout = ParallelLayout(tensor=2, pipeline=2)
    made = huggingface_to_checkpoint(model_folders["qwen3"], tmp_path / "made", layout, "float32")
    config = make_config("qwen3", model={"dtype": "bfloat16"}, trainer={"load": str(made)})

    plain = make_config("qwen3", model={"dtype": "bfloat16"})
    loaded = await first_run(config, tmp_path / "loaded")
    assert loaded[1:] == (await first_run(plain, tmp_path / "plain"))[1:]


FREEZE = ["model.embed_tokens.weight", "*.mlp.*"]


async def test_what_trained_there_and_is_frozen_here_comes_along_and_stays(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path, root, _ = await first_run(make_config("llama"), tmp_path / "first")
    config = make_config("llama", trainer={"load": str(path), "freeze": FREEZE})
    async with started(config, tmp_path / "second") as rank:
        assert rank.version.root == root
        answer = await rank.train(random_batch(1))
        saved = await save(rank, 1)
    # A resume, and a conversion, find it in the run's own checkpoints.
    shutil.rmtree(tmp_path / "first")
    assert root_of_converted(config, saved, tmp_path / "one") == answer.version.root
    async with started(config, tmp_path / "second") as rank:
        assert rank.version == answer.version
        answer = await rank.train(random_batch(2))
        saved = await save(rank, 2)
    assert root_of_converted(config, saved, tmp_path / "two") == answer.version.root


def root_of_converted(config: RunConfig, saved: Path, target: Path) -> str:
    path, dtype = config.model.path, config.model.dtype
    return checkpoint_to_huggingface(saved, read_any(saved), path, target, dtype)


async def test_weights_that_are_not_those_of_the_checkpoint_are_refused(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """What was frozen there is taken from a model with other weights here."""

    frozen = make_config("llama", trainer={"freeze": FREEZE})
    path, *_ = await first_run(frozen, tmp_path / "first")
    other = shutil.copytree(frozen.model.path, tmp_path / "other")
    tensors = load_tensors(other, tied=False)
    save_file({name: tensor * 2 for name, tensor in tensors.items()}, other / WEIGHTS)
    trainer = {"load": str(path), "freeze": FREEZE}
    config = make_config(model={"path": str(other)}, trainer=trainer)
    with pytest.raises(InputError, match=r"trainer\.load: .* give model\.path the model that it"):
        async with started(config, tmp_path / "second"):
            pass


async def test_another_model_and_what_is_no_checkpoint_are_refused(
    make_config: MakeConfig, model_folders: dict[str, Path], tmp_path: Path
) -> None:
    made = huggingface_to_checkpoint(
        model_folders["qwen2"], tmp_path / "made", ParallelLayout(), "float32"
    )

    async def start(load: Path) -> None:
        async with started(make_config("llama", trainer={"load": str(load)}), tmp_path):
            pass

    with pytest.raises(InputError, match="saved with family qwen2.*this run has llama"):
        await start(made)
    with pytest.raises(InputError, match=r"trainer\.load: .* is no checkpoint and holds none"):
        await start(tmp_path / "none")
    state = made / "state.json"
    state.write_text(state.read_text().replace('"format": 1', '"format": 5'))
    with pytest.raises(InputError, match="of format 5, this Trimaran reads format 1"):
        await start(made)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
async def test_each_checkpoint_holds_its_model_where_that_is_asked_for(
    make_config: MakeConfig, tmp_path: Path, dtype: str
) -> None:
    run = {"groups_per_step": 4, "checkpoint_models": True}
    config = make_config("llama", run=run, model={"dtype": dtype})

    async with started(config, tmp_path) as rank:
        await rank.train(random_batch(1))
        path = await save(rank, 1)
        await rank.export_model(rank.check_export("exported"))
    found = load_tensors(path / "huggingface", tied=False)
    assert same(found, load_tensors(tmp_path / "exported", tied=False))
    assert (path / "huggingface/tokenizer.json").is_file()
    assert newest(tmp_path) == path


@pytest.mark.parametrize(("first", "then"), [("adamw", "adamw_bf16"), ("adamw_bf16", "adamw")])
async def test_an_optimizer_goes_on_from_the_moments_of_the_other(
    make_config: MakeConfig, tmp_path: Path, first: str, then: str
) -> None:
    bf16 = {"model": {"dtype": "bfloat16"}}
    path, root, _ = await first_run(
        make_config("llama", **bf16, trainer={"optimizer": first}), tmp_path / "first"
    )
    config = make_config("llama", **bf16, trainer={"load": str(path), "optimizer": then})
    async with started(config, tmp_path / "second") as rank:
        assert rank.version.root == root
        answer = await rank.train(random_batch(1))
        assert answer.version.root != root and policy_of(rank).num_updates == 3
