"""Ranks that fail in a step while a checkpoint is written end once it is: a resume begins there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from services.trainer.checkpoints import checkpoint
from services.trainer.checkpoints.checkpoint_folder import newest
from tests.first_epoch import draw_epoch
from tests.trainer.batches import proofs_for, random_batch
from tests.trainer.processes import ANSWER_SECONDS, START_SECONDS, free_addresses
from trimaran.clients import TrainerClient
from trimaran.config import RunConfig, dump_config
from trimaran.errors import TrimaranError
from trimaran.types import Caller
from trimaran.wire import rpc

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
MakeConfig = Callable[..., RunConfig]
END_SECONDS = 60.0


class Ranks:
    """As processes that end once one of them has, as under a launcher."""

    def __init__(self, config: RunConfig, folder: Path, go: Path, failing: str) -> None:
        file = folder / "config.yaml"
        file.write_text(dump_config(config))
        command = [sys.executable, "-W", "ignore", "-m", "tests.trainer.serve_failing_rank"]
        self._processes = [
            subprocess.Popen(
                [*command, str(file), str(folder), str(index), str(go), failing],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stderr=subprocess.DEVNULL,
            )
            for index in range(config.num_trainer_ranks)
        ]

    @property
    def has_ended(self) -> bool:
        return any(one.poll() is not None for one in self._processes)

    async def end(self, seconds: float) -> None:
        """Raises TimeoutError where none ends by itself."""
        async with asyncio.timeout(seconds):
            while not self.has_ended:
                await asyncio.sleep(0.01)
        self.kill()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def failed_while_saving(
    config: RunConfig, folder: Path, go: Path, failing: str
) -> AsyncIterator[tuple[Ranks, TrainerClient]]:
    """Step 1 is being saved, until `go` exists, and step 2 has failed on these ranks."""
    epoch = await draw_epoch(folder)
    ranks, address = Ranks(config, folder, go, failing), config.endpoints.trainer[0]
    try:
        await rpc.wait_until_serving(address, START_SECONDS)
        async with TrainerClient(address, Caller(folder.name, epoch)) as client:
            start, _ = await client.get_policy_version(ANSWER_SECONDS)
            batch = random_batch(1)
            proofs = proofs_for(batch, start.root)
            await client.train_batch(batch, ANSWER_SECONDS, proofs=proofs)
            await client.begin_checkpoint(1, ANSWER_SECONDS)
            with pytest.raises(TrimaranError, match="an accident of its own|trainer rank"):
                await client.train_batch(random_batch(2), ANSWER_SECONDS, proofs=proofs)
            yield ranks, client
    finally:
        ranks.kill()


@pytest.mark.parametrize(
    ("layout", "failing"),
    [
        ({}, "0"),
        ({"tensor_parallel": 2}, "1"),
        ({"tensor_parallel": 2}, "0,1"),
        ({"data_parallel": 2}, "1"),  # which has nothing of its own to write
    ],
    ids=["alone", "one-of-two", "both", "one-that-writes-nothing"],
)
async def test_ranks_that_fail_while_a_checkpoint_is_written_end_once_it_is(
    layout: dict[str, int], failing: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    num_ranks = max(layout.values(), default=1)
    config = make_config(trainer=layout, endpoints={"trainer": free_addresses(num_ranks)})
    folder, go = tmp_path / "run", tmp_path / "go"

    async with failed_while_saving(config, folder, go, failing) as (ranks, client):
        waiting = asyncio.create_task(client.wait_checkpoint(1, ANSWER_SECONDS))
        await asyncio.sleep(rpc.STOP_GRACE_SECONDS + 2.0)
        assert not ranks.has_ended
        go.touch()
        assert Path(await waiting) == newest(folder)
        await ranks.end(END_SECONDS)
    saved = newest(folder)
    assert saved is not None and saved.name == "step-00001"
    state = checkpoint.read_any(saved)
    for shard in range(len(state.shards)):
        checkpoint.open_shard(saved, state, shard).check()
