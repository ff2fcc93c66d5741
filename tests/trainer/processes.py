"""Trainer ranks as processes of their own, and a client of rank 0."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from tests.first_epoch import draw_epoch
from tests.trainer.batches import proofs_for
from trimaran.clients import TrainAnswer, TrainerClient
from trimaran.config import RunConfig, dump_config
from trimaran.run.network import LOOPBACK
from trimaran.types import Caller, PolicyVersion, TrainingBatch
from trimaran.wire import rpc

START_SECONDS = 120.0
ANSWER_SECONDS = 120.0


def free_addresses(count: int) -> list[str]:
    """Outside of the range from which the kernel takes a port for a connection at any time."""
    found: list[str] = []
    while len(found) < count:
        found.append(LOOPBACK.free_address(set(found)))
    return found


def with_addresses(config: RunConfig) -> RunConfig:
    """One for each rank."""
    addresses = tuple(free_addresses(config.num_trainer_ranks))
    endpoints = config.endpoints.model_copy(update={"trainer": addresses})
    return config.model_copy(update={"endpoints": endpoints})


def start_rank(module: str, *words: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        **options,
    )


@contextlib.contextmanager
def killed_at_the_end(*processes: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Rank0(TrainerClient):
    first: PolicyVersion
    """What the ranks held when they were started."""

    async def train(self, batch: TrainingBatch, root: str = "") -> TrainAnswer:
        """`root`: of the weights that made its tokens, where they are not the first ones."""
        proofs = proofs_for(batch, root or self.first.root)
        return await self.train_batch(batch, ANSWER_SECONDS, proofs=proofs)


@contextlib.asynccontextmanager
async def connected(config: RunConfig, run_folder: Path, epoch: int) -> AsyncIterator[Rank0]:
    address = config.endpoints.trainer[0]
    await rpc.wait_until_serving(address, START_SECONDS)
    async with Rank0(address, Caller(run_folder.name, epoch)) as client:
        client.first, _ = await client.get_policy_version(ANSWER_SECONDS)
        yield client


@contextlib.asynccontextmanager
async def running_ranks(config: RunConfig, run_folder: Path) -> AsyncIterator[Rank0]:
    if not config.endpoints.trainer:
        config = with_addresses(config)
    epoch = await draw_epoch(run_folder)
    file = run_folder / "config.yaml"
    file.write_text(dump_config(config))
    ranks = [
        start_rank("tests.trainer.serve_rank", file, run_folder, index)
        for index in range(config.num_trainer_ranks)
    ]
    with killed_at_the_end(*ranks):
        async with connected(config, run_folder, epoch) as client:
            yield client
