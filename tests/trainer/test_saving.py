"""Saving beside training: a disk that is full or hangs costs a checkpoint, not the run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.trainer import checkpoint
from services.trainer.checkpoint_folder import newest
from services.trainer.rank import TrainerRank
from services.trainer.saver import Saver
from services.trainer.server import OtherRanks, TrainerServicer
from tests.trainer.batches import proofs_for, random_batch
from tests.trainer.processes import ANSWER_SECONDS, free_addresses, running_ranks
from tests.trainer.test_rank import started
from trimaran.config import RunConfig
from trimaran.errors import DeadlineError, InternalError, OutOfOrderError, UnavailableError
from trimaran.types import VersionId
from trimaran.v1 import trainer_pb2

MakeConfig = Callable[..., RunConfig]
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


def service(rank: TrainerRank, config: RunConfig) -> Callable[[int], Any]:
    unused: Any = None
    context: Any = None
    servicer = TrainerServicer(rank, OtherRanks(()), unused, unused, config.trainer)

    async def save(step: int) -> str:
        request = trainer_pb2.SaveCheckpointRequest(step=step)
        return (await servicer.SaveCheckpoint(request, context)).path

    return save


async def restarted_at(config: RunConfig, run_folder: Path) -> VersionId:
    async with started(config, run_folder) as rank:
        return rank.version.version


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("operation", ["write_tensors", "sync", "publish"])
def test_a_save_that_hangs_is_given_up_and_training_goes_on(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    config = make_config(trainer={"save_timeout": 0.3}, run={"keep_checkpoints": 2})

    async def scenario() -> None:
        async with started(config, tmp_path) as rank:
            save = service(rank, config)
            await rank.train(random_batch(1))
            first = Path(await save(1))
            await rank.train(random_batch(2))
            disk = Disk(monkeypatch, operation)
            disk.hangs = True
            with pytest.raises(DeadlineError, match="checkpoint of step 2: took over 0.3 s"):
                await save(2)
            root = (await rank.train(random_batch(3))).version.root
            with pytest.raises(UnavailableError, match="checkpoint of step 2 still hangs"):
                await save(3)
            assert newest(tmp_path) == first
            disk.hangs = False
            disk.goes_on.set()
            async with asyncio.timeout(LONG):
                while rank._saver._hanging:
                    await asyncio.sleep(0.01)
            # What came too late was written while step 3 trained: it is whole, or nobody loads it.
            last = Path(await save(3))
            assert rank.version.root == root
            assert not list(last.parent.glob("*.tmp"))
        assert newest(tmp_path) == last
        assert await restarted_at(config, tmp_path) == VersionId(0, 3)

    asyncio.run(scenario())


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("operation", ["write_tensors", "sync"])
def test_a_save_that_fails_leaves_the_one_before_and_nothing_else(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    config = make_config()

    async def scenario() -> None:
        async with started(config, tmp_path) as rank:
            save = service(rank, config)
            first = Path(await save(0))
            await rank.train(random_batch(1))
            disk = Disk(monkeypatch, operation)
            disk.error = "No space left on device"
            with pytest.raises(InternalError, match="checkpoint of step 1: .*No space left"):
                await save(1)
            assert list(first.parent.iterdir()) == [first]
            answer = await rank.train(random_batch(2))
            assert answer.version.version == VersionId(0, 2)
            disk.error = ""
            last = Path(await save(2))
            assert list(first.parent.iterdir()) == [last]

    asyncio.run(scenario())


@pytest.mark.usefixtures("single_rank")
def test_a_step_does_not_change_weights_that_are_being_saved(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when whoever asked for the save has gone away."""
    config = make_config()

    async def scenario() -> None:
        async with started(config, tmp_path) as rank:
            save = service(rank, config)
            await rank.train(random_batch(1))
            disk = Disk(monkeypatch, "write_tensors")
            disk.hangs = True
            saving = asyncio.create_task(save(1))
            assert await asyncio.to_thread(disk.reached.wait, LONG)
            saving.cancel()
            training = asyncio.create_task(rank.train(random_batch(2)))
            done, _ = await asyncio.wait([training], timeout=0.3)
            assert not done
            disk.goes_on.set()
            assert (await training).version.version == VersionId(0, 2)
            with pytest.raises(OutOfOrderError):
                await save(1)

    asyncio.run(scenario())


@pytest.mark.usefixtures("single_rank")
def test_a_checkpoint_is_of_its_step_also_when_the_next_one_is_under_way(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """Whoever asked for it has given up between its parts and the whole, and trains on."""
    config = make_config()

    async def scenario() -> None:
        async with started(config, tmp_path) as rank:
            first = await rank.train(random_batch(1))
            digest = await rank.write_shard(1)
            await rank.train(random_batch(2))
            await rank.publish_checkpoint([digest])
        async with started(config, tmp_path) as rank:
            assert rank.version == first.version

    asyncio.run(scenario())


@pytest.mark.usefixtures("single_rank")
def test_two_saves_of_one_step_at_a_time_follow_each_other(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with started(make_config(), tmp_path) as rank:
            save = service(rank, make_config())
            await rank.train(random_batch(1))
            assert len(set(await asyncio.gather(*(save(1) for _ in range(5))))) == 1
        assert await restarted_at(make_config(), tmp_path) == VersionId(0, 1)

    asyncio.run(scenario())


@pytest.mark.e2e
def test_a_disk_of_another_rank_that_fails_costs_a_checkpoint(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(trainer={"tensor_parallel": 2}, endpoints={"trainer": free_addresses(2)})
    folder = tmp_path / "run" / "checkpoints"

    async def scenario() -> None:
        async with running_ranks(config, tmp_path / "run") as client:
            start, _ = await client.get_policy_version(ANSWER_SECONDS)
            for step in (1, 2, 3):
                batch = random_batch(step)
                proofs = proofs_for(batch, start.root)
                await client.train_batch(batch, ANSWER_SECONDS, proofs=proofs)
                if step == 2:
                    # A folder where rank 1 is about to write its file.
                    (folder / "step-00002.tmp" / "shard-1.safetensors").mkdir(parents=True)
                    with pytest.raises(InternalError):
                        await client.save_checkpoint(step, ANSWER_SECONDS)
                else:
                    await client.save_checkpoint(step, ANSWER_SECONDS)
                    assert [path.name for path in folder.iterdir()] == [f"step-0000{step}"]

    asyncio.run(scenario())
    assert {path.name for path in (folder / "step-00003").iterdir()} == {
        *("state.json", "shard-0.safetensors", "shard-1.safetensors")
    }


def test_work_that_was_given_up_is_told_when_it_returns(caplog: pytest.LogCaptureFixture) -> None:
    goes_on = threading.Event()

    def fail() -> None:
        assert goes_on.wait(LONG)
        raise OSError(5, "Input/output error")

    async def scenario() -> None:
        saver = Saver(0.05)
        with pytest.raises(DeadlineError, match="the save: took over 0.05 s"):
            await saver.run("the save", fail)
        with pytest.raises(UnavailableError, match="another: the save still hangs"):
            await saver.run("another", lambda: None)
        goes_on.set()
        async with asyncio.timeout(LONG):
            while saver._hanging:
                await asyncio.sleep(0.01)
        assert await Saver(LONG).run("later", lambda: 3) == 3

    asyncio.run(scenario())
    assert "the save, which had been given up: [Errno 5] Input/output error" in caplog.text


def test_an_error_of_the_work_rises_as_it_is() -> None:
    def fail() -> None:
        raise TimeoutError("the work's own")

    with pytest.raises(TimeoutError, match="the work's own"):
        asyncio.run(Saver(LONG).run("the save", fail))
