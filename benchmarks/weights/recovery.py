"""From SIGKILL of a replica to the others live at the next version; from a joiner's start to proven.

The house of the fault tests: the real weight-sync, trainer and rollout services as processes, with
a stand-in policy and stand-in engines that hold real tensors (5.4 MB). Versions travel over gloo.
A joiner is forked from a server that has imported everything, so its seconds are those of
registration, relay, load and full read-back, not of an engine's start.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.results_file import Row
from tests.faults import orders, processes
from tests.faults.generation import Generation
from tests.faults.house import House, Setting, make_house, second_caller, write_model
from tests.faults.oracle import ChecksumOracle
from tests.faults.stand import Stand

ROUNDS = 5
REPLICAS = 4
"""Of which the last one joins and leaves."""
PLACES = {"before_stage": "", "in_stage": "stage", "in_commit": "load"}
"""Where the victim stands when it is killed."""
REACH_SECONDS = 20.0
SEED = 1


def measure_recovery(model: Path, work: Path) -> tuple[list[Row], str]:
    processes.preload(["tests.faults.children"])
    return asyncio.run(_measure(work))


async def _measure(work: Path) -> tuple[list[Row], str]:
    setting = Setting("stand-in", "collective", False, 1, REPLICAS)
    lost: dict[str, list[float]] = {name: [] for name in PLACES}
    joined = []
    async with _running(work, setting) as stand:
        for _ in range(ROUNDS):
            for name, place in PLACES.items():
                lost[name].append(await _lose(stand, place))
                await stand.recover()
            joined.append(await _join(stand))
    section = stand.house.config.weight_sync
    rows = [
        *(
            Row(f"seconds_from_kill_{name}", statistics.median(seconds), "s", None, False)
            for name, seconds in lost.items()
        ),
        Row("seconds_from_join_to_proven", statistics.median(joined), "s", None, False),
    ]
    return rows, (
        f"median of {ROUNDS} kills each, {REPLICAS - 1} stand-in replicas of 5.4 MB on both cores;"
        f" stage timeout {section.stage_timeout:g} s, commit timeout {section.commit_timeout:g} s,"
        f" heartbeat timeout {section.heartbeat_timeout:g} s"
    )


async def _lose(stand: Stand, place: str) -> float:
    """Seconds from SIGKILL of the first replica until the next version is live on the others."""
    await stand.train()
    name = stand.house.replicas[0]
    victim = stand.house.children[name]
    if place:
        orders.give(stand.house.run_folder, name, place)
    else:
        victim.kill()
    killed = time.monotonic()
    publishing = asyncio.create_task(stand.publish())
    if place:
        if not await stand.until_stopped(name, publishing, REACH_SECONDS):
            raise RuntimeError(f"{name} was not stopped in {place}")
        killed = time.monotonic()
        victim.kill()
    if (error := await publishing) is not None:
        raise error
    others = set(stand.house.alive)
    while True:
        routing = await stand.routing()
        assert stand.version and routing.live
        if routing.live.version == stand.version.version and others <= {
            replica.name for replica in routing.routable
        }:
            return time.monotonic() - killed


async def _join(stand: Stand) -> float:
    """Seconds from the start of the last replica's process until it is routable."""
    name = stand.house.replicas[-1]
    begin = time.monotonic()
    stand.house.start(name)
    while name not in {replica.name for replica in (await stand.routing()).routable}:
        if time.monotonic() - begin > REACH_SECONDS:
            raise TimeoutError(f"{name} is not routable: {(await stand.routing()).unroutable}")
        await asyncio.sleep(0.005)
    seconds = time.monotonic() - begin
    stand.house.children[name].kill()
    return seconds


@contextlib.asynccontextmanager
async def _running(work: Path, setting: Setting) -> AsyncIterator[Stand]:
    house: House = make_house(work / "house", setting, SEED, write_model(work / "tiny"))
    caller = second_caller(house)
    oracle = ChecksumOracle(work / "tiny", house.config.model.dtype, SEED)
    stand = Stand(house, Generation(house, oracle, caller), caller)
    generating: asyncio.Task[None] | None = None
    try:
        await house.open()
        await stand.start()
        generating = asyncio.create_task(stand.generation.run())
        yield stand
    finally:
        if generating:
            generating.cancel()
            await asyncio.gather(generating, return_exceptions=True)
        house.kill_all()
        for door in house.doors.values():
            await door.close()
