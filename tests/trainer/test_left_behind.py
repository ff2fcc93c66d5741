"""A real rank 1 that waits in a collective when its rank 0 is replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from services.trainer import ranks
from services.trainer.meeting import Meeting
from tests.first_epoch import draw_epoch
from tests.trainer.conftest import MakeConfig
from tests.trainer.processes import START_SECONDS, killed_at_the_end, start_rank, with_addresses
from trimaran.config import dump_config
from trimaran.run.context import RunContext
from trimaran.run.exits import LEFT_BEHIND
from trimaran.run.network import LOOPBACK
from trimaran.store import open_store

pytestmark = pytest.mark.e2e  # torch and megatron-core in a process of their own


async def test_it_ends_with_a_code_of_its_own_though_its_thread_hangs(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    config = with_addresses(make_config(trainer={"data_parallel": 2}))
    (file := tmp_path / "config.yaml").write_text(dump_config(config))
    folder = tmp_path / "run"

    await draw_epoch(folder)
    run = RunContext.in_folder(folder)
    store = await open_store(run.store_url)
    first = await host(Meeting(store, run.run_id))
    words = ("--config", file, "--run-folder", folder, "--index", 1)
    process = start_rank("commands.cli", "serve", "trainer", *words)
    with killed_at_the_end(process):
        async with asyncio.timeout(START_SECONDS):
            while not await asyncio.to_thread(first.check, ["trimaran/here/1"]):
                assert process.poll() is None
                await asyncio.sleep(0.1)
        second = await host(Meeting(store, run.run_id))  # the first one still answers
        code = await asyncio.to_thread(process.wait, START_SECONDS)
    assert first.port != second.port and code == LEFT_BEHIND
    await store.close()


async def host(meeting: Meeting) -> TCPStore:
    return await asyncio.to_thread(ranks._host, meeting, LOOPBACK, START_SECONDS)
