"""One trainer rank: idempotency, checkpoints, snapshots, export."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.trainer.rank import TrainerRank
from tests.trainer.batches import random_batch
from tests.trainer.test_policy import make_policy
from trimaran.config import RunConfig
from trimaran.errors import InputError, OutOfOrderError, UnavailableError
from trimaran.types import VersionId

pytestmark = pytest.mark.usefixtures("single_rank")
MakeConfig = Callable[..., RunConfig]
BF16 = {"dtype": "bfloat16"}


@contextlib.asynccontextmanager
async def started(config: RunConfig, run_folder: Path) -> AsyncIterator[TrainerRank]:
    rank = TrainerRank(config, run_folder, 0)
    try:
        await rank.start(lambda: make_policy(config))
        yield rank
    finally:
        await rank.close()


async def train(config: RunConfig, run_folder: Path, first: int, last: int) -> list[str]:
    """Weight roots after each step; a checkpoint at the end."""
    async with started(config, run_folder) as rank:
        answers = [await rank.train(random_batch(step)) for step in range(first, last + 1)]
        await rank.save_checkpoint(last)
        return [answer.version.root for answer in answers]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("updates", [1, 2])
def test_a_continued_run_equals_an_uninterrupted_one_bitwise(
    make_config: MakeConfig, tmp_path: Path, dtype: str, updates: int
) -> None:
    config = make_config(
        model={"dtype": dtype}, algorithm={"updates_per_batch": updates, "kl_coefficient": 0.01}
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    roots = asyncio.run(train(config, whole, 1, 4))
    first = asyncio.run(train(config, parts, 1, 2))
    second = asyncio.run(train(config, parts, 3, 4))
    assert first + second == roots
    assert len(set(roots)) == 4


def test_only_the_newest_checkpoints_are_kept(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(run={"groups_per_step": 4, "keep_checkpoints": 2})
    for step in (1, 2, 3):
        asyncio.run(train(config, tmp_path, step, step))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-00002",
        "step-00003",
    ]


def test_an_unfinished_checkpoint_is_not_loaded(make_config: MakeConfig, tmp_path: Path) -> None:
    asyncio.run(train(make_config(), tmp_path, 1, 1))
    (tmp_path / "checkpoints/step-00009.tmp").mkdir()

    async def restart() -> VersionId:
        async with started(make_config(), tmp_path) as rank:
            return rank.version.version

    assert asyncio.run(restart()) == VersionId(0, 1)
    assert not (tmp_path / "checkpoints/step-00009.tmp").exists()


def test_a_checkpoint_of_another_layout_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    asyncio.run(train(make_config(), tmp_path, 1, 1))
    with pytest.raises(InputError, match="saved with dtype float32, this run has bfloat16"):
        asyncio.run(train(make_config(model=BF16), tmp_path, 2, 2))


def test_a_step_runs_once_and_any_other_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(make_config(), tmp_path) as rank:
            with pytest.raises(OutOfOrderError, match="send step 1"):
                await rank.train(random_batch(2))
            first, joined = await asyncio.gather(
                rank.train(random_batch(1)), rank.train(random_batch(1))
            )
            assert first == joined == await rank.train(random_batch(1))
            await rank.train(random_batch(2))
            with pytest.raises(OutOfOrderError, match="send step 3"):
                await rank.train(random_batch(1))
            await rank.save_checkpoint(2)
            with pytest.raises(OutOfOrderError):
                await rank.save_checkpoint(1)
        async with started(make_config(), tmp_path) as rank:
            # The recorded answer outlives the process.
            assert (await rank.train(random_batch(2))).metrics["trainer/loss"] != 0.0
            assert rank.version.version == VersionId(0, 2)

    asyncio.run(scenario())


def test_a_caller_that_gives_up_does_not_stop_the_step(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with started(make_config(), tmp_path) as rank:
            caller = asyncio.create_task(rank.train(random_batch(1)))
            await asyncio.sleep(0)
            caller.cancel()
            answer = await rank.train(random_batch(1))
            assert answer.version.version == VersionId(0, 1)

    asyncio.run(scenario())


def test_after_a_failure_in_a_step_nothing_is_answered_any_more(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with started(make_config(), tmp_path) as rank:
            broken = random_batch(1)
            group = broken.groups[0].group
            object.__setattr__(group.completions_G[0], "token_ids_T", (10**6,) * 12)
            with pytest.raises(IndexError):
                await rank.train(broken)
            with pytest.raises(UnavailableError, match="step 1 failed.*resume the run"):
                await rank.train(random_batch(1))

    asyncio.run(scenario())


def test_a_batch_of_another_size_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(make_config(), tmp_path) as rank:
            with pytest.raises(InputError, match="has 2 groups; 4 are needed"):
                await rank.train(random_batch(1, num_groups=2))

    asyncio.run(scenario())


def test_a_snapshot_under_way_to_replicas_stays_whole(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with started(make_config(model=BF16), tmp_path) as rank:
            begun, finish = asyncio.Event(), asyncio.Event()
            seen: list[torch.Tensor] = []

            def send(snapshot) -> str:
                seen.append(snapshot.buffer)
                seen.append(snapshot.buffer.clone())
                loop.call_soon_threadsafe(begun.set)
                asyncio.run_coroutine_threadsafe(finish.wait(), loop).result(60)
                return snapshot.manifest.root

            start = rank.version
            sending = asyncio.create_task(rank.send(start.version, send))
            await begun.wait()
            after = await rank.train(random_batch(1))
            assert torch.equal(*seen)
            finish.set()
            assert await sending == start.root != after.version.root
            with pytest.raises(OutOfOrderError, match=r"weights of 0\.0: the trainer holds 0\.1"):
                await rank.send(start.version, send)

    asyncio.run(scenario())


def test_the_exported_folder_loads_in_plain_transformers(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config("llama", model=BF16)

    async def scenario() -> dict[str, torch.Tensor]:
        async with started(config, tmp_path) as rank:
            await rank.train(random_batch(1))
            await rank.export_model("model")
            with pytest.raises(InputError, match="into the run folder"):
                await rank.export_model(str(tmp_path.parent / "elsewhere"))
            return {name: tensor.clone() for name, tensor in rank._policy.export()}

    weights = asyncio.run(scenario())
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype="auto", output_loading_info=True
    )
    model, notes = loaded
    assert not any(notes.values())
    assert model.dtype == torch.bfloat16
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name]), name
    assert (tmp_path / "model/tokenizer.json").is_file()
    assert json.loads((tmp_path / "model/config.json").read_text())["dtype"] == "bfloat16"
