"""A step that trains while the version before it is still held, and may be sent."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import torch

from tests.trainer.batches import proofs_for, random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.processes import ANSWER_SECONDS, running_ranks
from tests.trainer.test_rank import BF16, PEER, save, started
from trimaran.errors import OutOfOrderError
from trimaran.types import VersionId
from weights.sending.snapshot import Snapshot

single_rank = pytest.mark.usefixtures("single_rank")


@single_rank
async def test_a_step_that_was_trained_ahead_is_the_same_step(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(model=BF16)
    async with started(config, tmp_path / "straight") as rank:
        straight = [await rank.train(random_batch(step)) for step in (1, 2)][-1]
    async with started(config, tmp_path / "ahead") as rank:
        await rank.train(random_batch(1))
        await rank.train_ahead(random_batch(2))
        ahead = await rank.make_version(2)
    assert ahead.version.root == straight.version.root
    for key in ("trainer/loss", "trainer/grad_norm"):
        assert ahead.metrics[key] == straight.metrics[key]


@single_rank
async def test_the_version_before_is_held_and_sent_until_the_next_one_is_made(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    reported: list[str | None] = []

    def read(snapshot: Snapshot) -> tuple[str, torch.Tensor]:
        return snapshot.manifest.root, snapshot.buffer.clone()

    hold = lambda snapshot: reported.append(snapshot and snapshot.manifest.root)  # noqa: E731
    async with started(make_config(model=BF16), tmp_path, hold) as rank:
        first = await rank.train(random_batch(1))
        _, before = await rank.send(VersionId(0, 1), read)
        (place,) = {rank.offer(PEER)[1].memory}
        await asyncio.gather(*(rank.train_ahead(random_batch(2)) for _ in range(2)))
        held = rank.version, rank.manifest.root, reported[-1]
        assert held == (first.version, first.version.root, first.version.root)
        root, after = await rank.send(VersionId(0, 1), read)
        assert root == first.version.root and torch.equal(before, after)
        assert await rank.train(random_batch(1)) == first, "it is answered again"
        with pytest.raises(OutOfOrderError, match="is at 1, and step 2 is under way"):
            await save(rank, 1)
        with pytest.raises(OutOfOrderError, match="step 2 is under way"):
            rank.check_export("model")
        with pytest.raises(OutOfOrderError, match="step 2 is under way; send step 2"):
            rank.begins(3)
        second = await rank.train(random_batch(2))
        assert second.version.version == VersionId(0, 2)
        assert rank.offer(PEER)[1].memory == place, "the snapshot has no second copy"
        assert await rank.train(random_batch(2)) == second
        await save(rank, 2)


@single_rank
async def test_who_asks_for_a_step_that_trains_ahead_gets_its_version(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """As a controller that is started again does; the one before it had not heard the end."""

    async with started(make_config(), tmp_path) as rank:
        caller = asyncio.create_task(rank.train_ahead(random_batch(1)))
        await asyncio.sleep(0)
        caller.cancel()
        both = await asyncio.gather(rank.train(random_batch(1)), rank.train(random_batch(1)))
        assert both[0] == both[1]
        assert both[0].version.version == VersionId(0, 1)


@single_rank
async def test_the_step_before_has_its_answer_also_while_its_weights_are_replaced(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """A controller that is started again asks for it, and would take another root for other weights."""
    is_last, replacing, may_go_on = threading.Event(), threading.Event(), threading.Event()

    def hold(snapshot: Snapshot | None) -> None:
        if snapshot is None and is_last.is_set():
            replacing.set()
            assert may_go_on.wait(30)

    async with started(make_config(), tmp_path, hold) as rank:
        first = await rank.train(random_batch(1))
        await rank.train_ahead(random_batch(2))
        is_last.set()
        second = asyncio.create_task(rank.make_version(2))
        try:
            assert await asyncio.to_thread(replacing.wait, 30)
            assert await rank.train(random_batch(1)) == first
        finally:
            may_go_on.set()
        assert (await second).version.version == VersionId(0, 2)


@single_rank
async def test_no_version_is_made_of_a_step_that_was_not_trained_ahead(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    async with started(make_config(), tmp_path) as rank:
        with pytest.raises(OutOfOrderError, match="step 1 was not trained ahead here"):
            rank.check_ahead(1)


@pytest.mark.e2e
async def test_two_ranks_train_ahead_together(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(trainer={"tensor_parallel": 2})
    batches = [random_batch(step) for step in (1, 2)]
    ahead: list[str] = []
    async with running_ranks(config, tmp_path / "ahead") as client:
        for batch in batches:
            proofs = proofs_for(batch, client.first.root)
            await client.train_ahead(batch, ANSWER_SECONDS, proofs)
            held, _ = await client.get_policy_version(ANSWER_SECONDS)
            assert held.version.step == batch.step - 1
            with pytest.raises(OutOfOrderError, match="is under way"):
                await client.save_checkpoint(batch.step - 1, ANSWER_SECONDS)
            answer = await client.make_version(batch.step, ANSWER_SECONDS)
            ahead.append(answer.version.root)
        await client.save_checkpoint(2, ANSWER_SECONDS)
    async with running_ranks(config, tmp_path / "straight") as client:
        assert ahead == [(await client.train(batch)).version.root for batch in batches]
