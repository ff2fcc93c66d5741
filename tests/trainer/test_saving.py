"""Saving beside training: a disk that is full or hangs costs a checkpoint, not the run."""

from __future__ import annotations

import asyncio
import mmap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer.checkpoints import checkpoint
from services.trainer.checkpoints.checkpoint_folder import newest
from services.trainer.exchange.host_copy import HostCopy
from services.trainer.other_ranks import OtherRanks
from services.trainer.rank import TrainerRank
from services.trainer.server import TrainerServicer
from tests.trainer.batches import random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.processes import ANSWER_SECONDS, running_ranks
from tests.trainer.test_rank import started
from trimaran.config import RunConfig
from trimaran.errors import InternalError, OutOfOrderError, UnavailableError
from trimaran.types import VersionId
from trimaran.v1 import trainer_pb2

LONG = 60.0


class Disk:
    """Hangs, or fails, in the operation that is patched to go through it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.hangs, self.error = False, ""
        self.reached, self.goes_on = threading.Event(), threading.Event()
        self._operation = getattr(checkpoint, name)
        monkeypatch.setattr(checkpoint, name, self._wrapped)

    def _wrapped(self, *arguments: Any) -> Any:
        if self.error:
            raise OSError(28, self.error)
        if self.hangs:
            self.reached.set()
            assert self.goes_on.wait(LONG)
        return self._operation(*arguments)


class Service:
    """Rank 0's, called without a network."""

    def __init__(self, rank: TrainerRank, config: RunConfig) -> None:
        unused: Any = None
        self._context: Any = None
        self._servicer = TrainerServicer(rank, OtherRanks(()), unused, unused, config.trainer)

    async def begin(self, step: int) -> None:
        request = trainer_pb2.SaveCheckpointRequest(step=step)
        await self._servicer.SaveCheckpoint(request, self._context)

    async def wait(self, step: int) -> Path:
        request = trainer_pb2.WaitCheckpointRequest(step=step)
        return Path((await self._servicer.WaitCheckpoint(request, self._context)).path)

    async def save(self, step: int) -> Path:
        await self.begin(step)
        return await self.wait(step)


async def restarted_at(config: RunConfig, run_folder: Path) -> VersionId:
    async with started(config, run_folder) as rank:
        return rank.version.version


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("operation", ["write_tensors", "sync", "publish"])
async def test_a_save_that_hangs_is_given_up_and_training_goes_on(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    config = make_config(run={"keep_checkpoints": 2})

    async with started(config, tmp_path) as rank:
        service = Service(rank, config)
        await rank.train(random_batch(1))
        first = await service.save(1)
        await rank.train(random_batch(2))
        disk = Disk(monkeypatch, operation)
        disk.hangs = True
        with monkeypatch.context() as patch:
            patch.setattr(rank.saver._disk, "timeout", 3.0)  # the others may take longer
            await service.begin(2)
            with pytest.raises(UnavailableError, match="step 2: its disk has not answered for 3 s"):
                await service.wait(2)
        root = (await rank.train(random_batch(3))).version.root
        with pytest.raises(
            UnavailableError, match="checkpoint of step 3: its disk has not answered"
        ):
            await service.begin(3)
        assert newest(tmp_path) == first
        disk.hangs = False
        disk.goes_on.set()
        async with asyncio.timeout(LONG):
            while rank.saver._disk.hangs:
                await asyncio.sleep(0.01)
        # What came too late was written while step 3 trained: it is whole, or nothing loads it.
        last = await service.save(3)
        assert rank.version.root == root
        assert not list(last.parent.glob("*.tmp"))
    assert newest(tmp_path) == last
    assert await restarted_at(config, tmp_path) == VersionId(0, 3)


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("operation", ["write_tensors", "sync"])
async def test_a_save_that_fails_leaves_the_one_before_and_nothing_else(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    config = make_config()

    async with started(config, tmp_path) as rank:
        service = Service(rank, config)
        first = await service.save(0)
        await rank.train(random_batch(1))
        disk = Disk(monkeypatch, operation)
        disk.error = "No space left on device"
        await service.begin(1)
        for _ in range(2):  # also when asked again
            with pytest.raises(InternalError, match="checkpoint of step 1: .*No space left"):
                await service.wait(1)
        assert list(first.parent.iterdir()) == [first]
        answer = await rank.train(random_batch(2))
        assert answer.version.version == VersionId(0, 2)
        disk.error = ""
        last = await service.save(2)
        assert list(first.parent.iterdir()) == [last]


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_steps_train_while_a_checkpoint_of_an_earlier_one_is_written(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """What is written are weights and moments of its own step."""
    config = make_config(model={"dtype": dtype})

    async with started(config, tmp_path / "whole") as rank:
        roots = [(await rank.train(random_batch(step))).version.root for step in (1, 2, 3, 4)]
    async with started(config, tmp_path) as rank:
        service = Service(rank, config)
        await rank.train(random_batch(1))
        disk = Disk(monkeypatch, "write_tensors")
        disk.hangs = True
        await service.begin(1)
        assert await asyncio.to_thread(disk.reached.wait, LONG)
        for step in (2, 3):
            assert (await rank.train(random_batch(step))).version.root == roots[step - 1]
        assert newest(tmp_path) is None
        disk.goes_on.set()
        assert await service.wait(1) == newest(tmp_path)
    async with started(config, tmp_path) as rank:
        assert rank.version.root == roots[0]
        again = [(await rank.train(random_batch(step))).version.root for step in (2, 3, 4)]
        assert again == roots[1:]


@pytest.mark.usefixtures("single_rank")
async def test_a_save_waits_for_the_one_that_is_being_written(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the caller that asked for that one has gone away."""
    config = make_config(run={"keep_checkpoints": 2})

    async with started(config, tmp_path) as rank:
        service = Service(rank, config)
        await rank.train(random_batch(1))
        disk = Disk(monkeypatch, "write_tensors")
        disk.hangs = True
        waiting = asyncio.create_task(service.save(1))
        assert await asyncio.to_thread(disk.reached.wait, LONG)
        waiting.cancel()
        await rank.train(random_batch(2))
        second = asyncio.create_task(service.begin(2))
        done, _ = await asyncio.wait([second], timeout=0.3)
        assert not done
        disk.goes_on.set()
        await second
        last = await service.wait(2)
        names = ["step-00001", "step-00002"]
        assert sorted(path.name for path in last.parent.iterdir()) == names
        with pytest.raises(OutOfOrderError):
            await service.begin(1)
        with pytest.raises(OutOfOrderError, match="no save of it has begun"):
            await service.wait(1)


@pytest.mark.usefixtures("single_rank")
async def test_a_save_that_is_asked_for_twice_is_made_once(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    async with started(make_config(), tmp_path) as rank:
        service = Service(rank, make_config())
        await rank.train(random_batch(1))
        first, *others = await asyncio.gather(*(service.save(1) for _ in range(5)))
        made = first.stat().st_ino
        assert {first} == set(others)
        assert (await service.save(1)).stat().st_ino == made
    assert await restarted_at(make_config(), tmp_path) == VersionId(0, 1)


@pytest.mark.usefixtures("single_rank")
async def test_a_rank_that_was_started_again_knows_where_its_checkpoint_lies(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """For a controller that was started again before it heard of it."""

    async with started(make_config(), tmp_path) as rank:
        await rank.train(random_batch(1))
        saved = await Service(rank, make_config()).save(1)
    async with started(make_config(), tmp_path) as rank:
        service = Service(rank, make_config())
        await rank.train(random_batch(2))
        assert await service.wait(1) == saved
        with pytest.raises(OutOfOrderError, match="checkpoint of step 2: no save of it"):
            await service.wait(2)


@pytest.mark.e2e
async def test_a_disk_of_another_rank_that_fails_costs_a_checkpoint(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(trainer={"tensor_parallel": 2})
    folder = tmp_path / "run" / "checkpoints"

    async with running_ranks(config, tmp_path / "run") as client:
        for step in (1, 2, 3):
            await client.train(random_batch(step))
            if step == 2:
                # A folder where rank 1 is about to write its file.
                (folder / "step-00002.tmp" / "shard-1.safetensors").mkdir(parents=True)
                with pytest.raises(InternalError):
                    await client.save_checkpoint(step, ANSWER_SECONDS)
            else:
                await client.save_checkpoint(step, ANSWER_SECONDS)
                assert [path.name for path in folder.iterdir()] == [f"step-0000{step}"]
    assert {path.name for path in (folder / "step-00003").iterdir()} == {
        *("state.json", "shard-0.safetensors", "shard-1.safetensors")
    }


def test_a_copy_has_what_the_tensors_had() -> None:
    """Views, tensors of one element and without any, and what is not contiguous; read before and after
    the tensors change."""
    flat = torch.arange(12, dtype=torch.float32)
    tensors = {
        "early": flat[:3],
        "part": flat[3:8],
        "turned": flat.view(3, 4).t(),
        "count": torch.tensor(7),
        "none": torch.empty(0, 3),
        "half": torch.ones(5, dtype=torch.bfloat16, requires_grad=True),
    }
    was = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    copies = HostCopy(tensors)
    assert torch.equal(copies["early"], was["early"])
    copies.detach()
    flat.zero_()
    for name in [*tensors][1:]:
        copy = copies[name]
        assert (copy.dtype, copy.shape) == (was[name].dtype, was[name].shape)
        assert torch.equal(copy, was[name]) and copy.is_contiguous() and not copy.requires_grad


def test_what_was_read_is_not_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is on the disk before the next step takes room for its largest tensor alone."""
    sizes: list[int] = []
    make = mmap.mmap

    def recorded(number: int, size: int, *arguments: Any) -> Any:
        sizes.append(size)
        return make(number, size, *arguments)

    monkeypatch.setattr(mmap, "mmap", recorded)
    copies = HostCopy({"small": torch.zeros(10), "large": torch.ones(1000), "late": torch.ones(50)})
    assert copies["large"].sum() == 1000 and not copies["small"].any()
    assert sizes == [4000]
    copies.detach()
    assert sizes == [4000, 256]
    assert copies["late"].sum() == 50
