"""Ranks that fail in a step while a checkpoint is written end once it is: a resume begins there."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from services.trainer.checkpoints import checkpoint
from services.trainer.checkpoints.checkpoint_folder import newest
from tests.first_epoch import draw_epoch
from tests.trainer.batches import random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.processes import (
    ANSWER_SECONDS,
    connected,
    killed_at_the_end,
    start_rank,
    with_addresses,
)
from trimaran.config import dump_config
from trimaran.errors import TrimaranError
from trimaran.wire import rpc

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
END_SECONDS = 60.0


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
    """Step 1 is being saved, until `go` exists, and step 2 fails."""
    config = with_addresses(make_config(trainer=layout))
    folder, go, file = tmp_path / "run", tmp_path / "go", tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    epoch = await draw_epoch(folder)
    module, quiet = "tests.trainer.serve_failing_rank", {"stderr": subprocess.DEVNULL}
    ranks = [
        start_rank(module, file, folder, index, go, failing, **quiet)
        for index in range(config.num_trainer_ranks)
    ]

    def one_has_ended() -> bool:
        return any(one.poll() is not None for one in ranks)

    with killed_at_the_end(*ranks):
        async with connected(config, folder, epoch) as client:
            await client.train(random_batch(1))
            await client.begin_checkpoint(1, ANSWER_SECONDS)
            with pytest.raises(TrimaranError, match="an accident of its own|trainer rank"):
                await client.train(random_batch(2))
            waiting = asyncio.create_task(client.wait_checkpoint(1, ANSWER_SECONDS))
            await asyncio.sleep(rpc.STOP_GRACE_SECONDS + 2.0)
            assert not one_has_ended()
            go.touch()
            assert Path(await waiting) == newest(folder)
            async with asyncio.timeout(END_SECONDS):  # a launcher then ends the others
                while not one_has_ended():
                    await asyncio.sleep(0.01)
    saved = newest(folder)
    assert saved is not None and saved.name == "step-00001"
    state = checkpoint.read_any(saved)
    for shard in range(len(state.shards)):
        checkpoint.open_shard(saved, state, shard).check()
