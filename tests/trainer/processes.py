"""Trainer ranks as processes of their own, and a client of rank 0."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.first_epoch import draw_epoch
from trimaran.clients import TrainerClient
from trimaran.config import RunConfig, dump_config
from trimaran.run.network import LOOPBACK
from trimaran.types import Caller
from trimaran.wire import rpc

START_SECONDS = 120.0
ANSWER_SECONDS = 120.0


def free_addresses(count: int) -> list[str]:
    """Outside of the range from which the kernel takes a port for a connection at any time."""
    found: list[str] = []
    while len(found) < count:
        found.append(LOOPBACK.free_address(set(found)))
    return found


@contextlib.asynccontextmanager
async def running_ranks(config: RunConfig, run_folder: Path) -> AsyncIterator[TrainerClient]:
    epoch = await draw_epoch(run_folder)
    file = run_folder / "config.yaml"
    file.write_text(dump_config(config))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.trainer.serve_rank"]
    processes = [
        subprocess.Popen(
            [*command, str(file), str(run_folder), str(index)],
            env=environment,
        )
        for index in range(config.num_trainer_ranks)
    ]
    try:
        await rpc.wait_until_serving(config.endpoints.trainer[0], START_SECONDS)
        async with TrainerClient(
            config.endpoints.trainer[0], Caller(run_folder.name, epoch)
        ) as client:
            yield client
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
