"""Turns on shared devices."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.configs import configure
from trimaran.errors import DeadlineError
from trimaran.run.context import RunContext
from trimaran.run.device_turns import DeviceTurn, rollout_turn, trainer_turn, waits_for_turn


def take(turn: DeviceTurn, timeout: float = 0.1) -> None:
    asyncio.run(turn.take(timeout))


def test_a_device_has_one_holder_at_a_time(tmp_path: Path) -> None:
    trainer, rollout = (DeviceTurn(tmp_path, (0,), name) for name in ("trainer-0", "rollout-0"))
    take(trainer)
    take(trainer)
    with pytest.raises(DeadlineError, match="rollout-0: .* not free .* in use by trainer-0"):
        take(rollout)
    trainer.release()
    take(rollout)
    assert (trainer.is_taken, rollout.is_taken) == (False, True)


def test_a_replica_takes_all_of_its_devices_or_none(tmp_path: Path) -> None:
    """So a rank that is to get its device never waits for a replica that waits itself."""
    first, second = DeviceTurn(tmp_path, (0,), "trainer-0"), DeviceTurn(tmp_path, (1,), "trainer-1")
    replica = DeviceTurn(tmp_path, (0, 1), "rollout-0")
    take(replica)
    replica.release()
    take(second)
    # Not those who had the other one before, itself among them.
    with pytest.raises(DeadlineError, match="rollout-0: .* device-1 is in use by trainer-1; see"):
        take(replica)
    take(first)
    first.release()
    second.release()
    take(replica)


async def test_who_waits_gets_it_as_soon_as_it_is_free(tmp_path: Path) -> None:
    trainer, rollout = (DeviceTurn(tmp_path, (0,), name) for name in ("trainer-0", "rollout-0"))
    await trainer.take(1)
    waiting = asyncio.create_task(rollout.take(10))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    trainer.release()
    await waiting


def test_the_launcher_sees_who_waits_for_his_turn(tmp_path: Path) -> None:
    shape = {"trainer": {"data_parallel": 4}, "rollout": {"replicas": 2, "tensor_parallel": 2}}
    config = configure(**shape, run={"pools": "colocated", "groups_per_step": 4})
    run = RunContext.in_folder(tmp_path)

    def waiting() -> list[str]:
        names = ("trainer-2", "trainer-3", "rollout-0", "rollout-1", "reward", "weight-sync")
        return [name for name in names if waits_for_turn(config, run, name)]

    assert waiting() == []
    rank, replica = trainer_turn(config, run, 3), rollout_turn(config, run, 1)
    assert rank and replica and waiting() == []
    take(rank)
    assert waiting() == ["rollout-1"]
    rank.release()
    assert waiting() == []
    take(replica)
    assert waiting() == ["trainer-2", "trainer-3"]


HOLDER = """
import asyncio, sys
from pathlib import Path
from trimaran.run.device_turns import DeviceTurn
turn = DeviceTurn(Path(sys.argv[1]), (0,), "rollout-0")
asyncio.run(turn.take(5))
print("taken", flush=True)
input()
"""


def test_the_kernel_ends_the_turn_of_a_process_that_dies(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout and process.stdout.readline() == "taken\n"
        trainer = DeviceTurn(tmp_path, (0,), "trainer-0")
        with pytest.raises(DeadlineError, match="rollout-0"):
            take(trainer)
        process.kill()
        process.wait()
        take(trainer)
    finally:
        process.kill()
        process.wait()
