"""A rank that is killed or stopped while all of them step, save or load: the others say so in time, and
the last good checkpoint stands."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from services.trainer.checkpoints import checkpoint
from services.trainer.checkpoints.checkpoint_folder import newest
from services.trainer.checkpoints.convert.convert import huggingface_to_checkpoint
from tests.first_epoch import draw_epoch
from tests.trainer.batches import random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.processes import (
    START_SECONDS,
    connected,
    killed_at_the_end,
    start_rank,
    with_addresses,
)
from trimaran.config import dump_config
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import TrimaranError
from trimaran.run.context import RunContext

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


@pytest.mark.parametrize(
    ("place", "number", "reported"),
    CASES,
    ids=lambda value: value.name if isinstance(value, signal.Signals) else None,
)
async def test_a_rank_that_dies_or_stops_ends_in_the_last_good_state(
    place: str,
    number: signal.Signals,
    reported: str,
    make_config: MakeConfig,
    model_folders: dict[str, Path],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    saved = huggingface_to_checkpoint(
        model_folders["qwen2"], folder, ParallelLayout(tensor=2), "float32"
    )
    trainer = {"step_timeout": STEP_SECONDS, "save_timeout": SAVE_SECONDS, "tensor_parallel": 2}
    config = with_addresses(make_config("qwen2", trainer=trainer))
    config = config.model_copy(update={"start_timeout": JOIN_SECONDS})
    file, log = tmp_path / "config.yaml", tmp_path / "rank-0.log"
    file.write_text(dump_config(config))
    epoch = await draw_epoch(folder)
    first = start_rank("tests.trainer.serve_rank", file, folder, 0, stderr=log.open("w"))
    faulty = start_rank("tests.trainer.serve_faulty_rank", file, folder, 1, place, int(number))

    async def end_of_first(seconds: float) -> None:
        assert await asyncio.to_thread(first.wait, seconds) != 0

    with killed_at_the_end(first, faulty):
        if place == "loading":
            # The ranks digest their weights together, once each has loaded its own.
            await end_of_first(JOIN_SECONDS + STEP_SECONDS + SLACK_SECONDS)
            assert "another rank was lost while the ranks loaded" in log.read_text()
        else:
            async with connected(config, folder, epoch) as client:
                began = time.monotonic()
                with pytest.raises(TrimaranError, match=reported):
                    if place == "stepping":
                        await client.train(random_batch(1))
                    else:
                        await client.save_checkpoint(0, SLACK_SECONDS)
                limit = STEP_SECONDS if place == "stepping" else 2 * SAVE_SECONDS + 5
                assert time.monotonic() - began < limit + SLACK_SECONDS / 2
        if (place, number) == ("stepping", signal.SIGKILL):
            await end_of_first(SLACK_SECONDS)  # whatever started it starts all of them again
    checkpoint.tidy(folder)
    assert newest(folder) == saved
    state = checkpoint.read_any(saved)
    for shard in range(2):
        checkpoint.open_shard(saved, state, shard).check()
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_hosts_without_a_folder_in_common_train_nothing(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """Each has a run folder of its own, and `run.checkpoints` names no other."""
    config = with_addresses(make_config(trainer={"tensor_parallel": 2}))
    hosts = [tmp_path / name / "run" for name in ("a", "b")]
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    asyncio.run(draw_epoch(hosts[0]))
    hosts[1].mkdir(parents=True)
    replace(RunContext.in_folder(hosts[0]), folder=hosts[1]).write()
    ranks = [
        start_rank("tests.trainer.serve_rank", file, folder, index, stderr=subprocess.PIPE)
        for index, folder in enumerate(hosts)
    ]
    with killed_at_the_end(*ranks):
        for index, process in enumerate(ranks):
            _, said = process.communicate(timeout=START_SECONDS)
            assert f"lacks what trainer rank {1 - index} has just written there" in said
