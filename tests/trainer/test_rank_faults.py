"""A rank that is killed or stopped while all of them step, save or load: the others say so in time, and
the last good checkpoint stands."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.trainer.checkpoints import checkpoint
from services.trainer.checkpoints.checkpoint_folder import newest
from services.trainer.checkpoints.convert.convert import huggingface_to_checkpoint
from tests.first_epoch import draw_epoch
from tests.trainer.batches import proofs_for, random_batch
from tests.trainer.processes import START_SECONDS, free_addresses
from trimaran.clients import TrainerClient
from trimaran.config import RunConfig, dump_config
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import TrimaranError
from trimaran.run.context import RunContext
from trimaran.types import Caller
from trimaran.wire import rpc

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
STEP_SECONDS, SAVE_SECONDS, JOIN_SECONDS = 12.0, 3.0, 60.0
SLACK_SECONDS = 60.0
"""Of a slow machine, on top of the deadline that is looked at."""
CASES = [
    ("stepping", signal.SIGSTOP, "rank took over 12 s|Timed out"),
    ("saving", signal.SIGKILL, "trainer rank 1: "),
    ("saving", signal.SIGSTOP, "trainer rank 1: .* no answer within 8 s"),
    ("loading", signal.SIGKILL, ""),
    ("stepping", signal.SIGKILL, "rank|closed|reset"),
    ("loading", signal.SIGSTOP, ""),
    ("copying", signal.SIGKILL, "trainer rank 1: "),
    ("copying", signal.SIGSTOP, "trainer rank 1: .* no answer within 8 s"),
]


class Ranks:
    """Two of them as processes; the second one is faulty."""

    def __init__(self, config: RunConfig, folder: Path, place: str, number: int) -> None:
        file, environment = folder / "config.yaml", {**os.environ, "OMP_NUM_THREADS": "1"}
        file.write_text(dump_config(config))
        modules = ["tests.trainer.serve_rank", "tests.trainer.serve_faulty_rank"]
        self.log = folder / "rank-0.log"
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", module, str(file), str(folder), str(index)]
                + ([place, str(number)] if index else []),
                env=environment,
                stderr=self.log.open("w") if index == 0 else None,
            )
            for index, module in enumerate(modules)
        ]

    async def end_of_first(self, seconds: float) -> int:
        return await asyncio.to_thread(self.processes[0].wait, seconds)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("place", "number", "reported"),
    CASES,
    ids=lambda value: value.name if isinstance(value, signal.Signals) else None,
)
def test_a_rank_that_dies_or_stops_ends_in_the_last_good_state(
    place: str,
    number: signal.Signals,
    reported: str,
    make_config: Callable[..., RunConfig],
    model_folders: dict[str, Path],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    saved = huggingface_to_checkpoint(
        model_folders["qwen2"], folder, ParallelLayout(tensor=2), "float32"
    )
    trainer = {"step_timeout": STEP_SECONDS, "save_timeout": SAVE_SECONDS, "tensor_parallel": 2}
    config = make_config("qwen2", trainer=trainer, endpoints={"trainer": free_addresses(2)})
    config = config.model_copy(update={"start_timeout": JOIN_SECONDS})

    async def scenario() -> None:
        epoch = await draw_epoch(folder)
        ranks = Ranks(config, folder, place, number)
        try:
            if place == "loading":
                # The ranks digest their weights together, once each has loaded its own.
                seconds = JOIN_SECONDS + STEP_SECONDS + SLACK_SECONDS
                assert await ranks.end_of_first(seconds) != 0
                assert "another rank was lost while the ranks loaded" in ranks.log.read_text()
                return
            await rpc.wait_until_serving(config.endpoints.trainer[0], START_SECONDS)
            caller = Caller(folder.name, epoch)
            async with TrainerClient(config.endpoints.trainer[0], caller) as client:
                start, _ = await client.get_policy_version(SLACK_SECONDS)
                batch = random_batch(1)
                proofs = proofs_for(batch, start.root)
                began = time.monotonic()
                with pytest.raises(TrimaranError, match=reported):
                    if place == "stepping":
                        await client.train_batch(batch, SLACK_SECONDS, proofs=proofs)
                    else:
                        await client.save_checkpoint(0, SLACK_SECONDS)
                limit = STEP_SECONDS if place == "stepping" else 2 * SAVE_SECONDS + 5
                assert time.monotonic() - began < limit + SLACK_SECONDS / 2
            if (place, number) == ("stepping", signal.SIGKILL):
                # Whatever started it starts all of them again.
                assert await ranks.end_of_first(SLACK_SECONDS) != 0
        finally:
            ranks.kill()

    asyncio.run(scenario())
    checkpoint.tidy(folder)
    assert newest(folder) == saved
    state = checkpoint.read_any(saved)
    for shard in range(2):
        checkpoint.open_shard(saved, state, shard).check()
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_hosts_without_a_folder_in_common_train_nothing(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """Each has a run folder of its own, and `run.checkpoints` names no other."""
    config = make_config(trainer={"tensor_parallel": 2}, endpoints={"trainer": free_addresses(2)})
    hosts = [tmp_path / name / "run" for name in ("a", "b")]
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    asyncio.run(draw_epoch(hosts[0]))
    hosts[1].mkdir(parents=True)
    replace(RunContext.in_folder(hosts[0]), folder=hosts[1]).write()
    command = [sys.executable, "-W", "ignore", "-m", "tests.trainer.serve_rank", str(file)]
    ranks = [
        subprocess.Popen(
            [*command, str(folder), str(index)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for index, folder in enumerate(hosts)
    ]
    try:
        for index, process in enumerate(ranks):
            _, said = process.communicate(timeout=START_SECONDS)
            assert f"lacks what trainer rank {1 - index} has just written there" in said
    finally:
        for process in ranks:
            process.kill()
            process.wait()
