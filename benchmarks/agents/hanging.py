"""64 episodes of which one in eight hangs for its whole deadline, against 64 that do not.

The environment service is the real one in a process of its own, with a class. Its replica is a stand-in that answers at
once. An episode that hangs does so in each of its tries, until it is faulted.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.agents.controller import episode_maker, served
from benchmarks.control.stand_ins import Pool, Rollout, Shape
from benchmarks.results_file import Row
from services.controller.episodes.maker import EpisodeMaker
from trimaran.config import RunConfig, dump_config, parse_config
from trimaran.run.context import RunContext
from trimaran.run.environment import serve_command, service_environment
from trimaran.run.network import LOOPBACK
from trimaran.store import open_store
from trimaran.trust.allowed import ALLOW_VARIABLE
from trimaran.types import Message, Prompt, Replica, Sampling
from trimaran.v1 import rollout_pb2, rollout_pb2_grpc
from trimaran.wire import rpc

GOAL = 1.1
EPISODES, EACH = 64, 8
ROUNDS = 3
DEADLINE_SECONDS = 2.0
START_SECONDS = 60.0
SAMPLING = Sampling(temperature=1.0, max_tokens=64, num_samples=1)
CLASS = Path(__file__).parent / "slow_world.py"


def measure_hanging(work: Path) -> tuple[list[Row], str]:
    run_folder = work / "hanging"
    run_folder.mkdir()
    ends = asyncio.run(_measure(run_folder))
    hang, calm = (statistics.median(ends[side]) for side in ("hang", "calm"))
    return [
        Row("ends_beside_hanging_episodes_against_without", hang / calm, "ratio", GOAL, False),
        Row("median_end_beside_hanging_episodes", hang, "s", None, False),
        Row("median_end_without", calm, "s", None, False),
    ], (
        f"{ROUNDS} interleaved rounds of {EPISODES} episodes of 8 turns of half a second; one in {EACH} hangs for"
        f" {DEADLINE_SECONDS:g} s, three times"
    )


async def _measure(run_folder: Path) -> dict[str, list[float]]:
    config = parse_config(
        {
            "model": {"path": "unused"},
            "data": {"train": "unused"},
            "reward": {"rules": {"exact_match": 1.0}},
            "rollout": {"max_tokens": 64},
            "environment": {"factory": f"{CLASS}:SlowWorld", "timeout": DEADLINE_SECONDS},
            "endpoints": {"environment": [LOOPBACK.free_address()]},
        }
    )
    pool = Pool(Shape(replicas=1, samples=1, tokens=64, chunks=1, turns=8))
    add = rollout_pb2_grpc.add_RolloutServiceServicer_to_server
    ends: dict[str, list[float]] = {"calm": [], "hang": []}
    async with (
        served(rollout_pb2.DESCRIPTOR, add, Rollout("rollout-0", pool)) as rollout,
        _environment(config, run_folder) as address,
        episode_maker(config, Replica("rollout-0", rollout), address) as maker,
    ):
        await _ends(maker, 0, hangs=False)  # starts the processes
        for number in range(ROUNDS):
            for side in ends:
                end = await _ends(maker, number, hangs=side == "hang")
                ends[side].append(end)
                print(f"round {number + 1} {side}: {end:.2f} s", flush=True)
    return ends


async def _ends(maker: EpisodeMaker, number: int, hangs: bool) -> float:
    """The median end of the episodes that never hang."""

    async def play(place: int) -> float:
        task = "hang" if hangs and place % EACH == 0 else "play"
        prompt = Prompt(f"row:{place}", (Message("user", "Begin."),), task, "")
        group = await maker.generate(number * EPISODES + place, prompt, SAMPLING)
        assert bool(group.completions_G[0].fault) == (task == "hang"), group.completions_G[0].fault
        return time.perf_counter() - began

    began = time.perf_counter()
    ends = await asyncio.gather(*map(play, range(EPISODES)))
    return statistics.median(end for place, end in enumerate(ends) if place % EACH)


@asynccontextmanager
async def _environment(config: RunConfig, run_folder: Path) -> AsyncGenerator[str]:
    store = await open_store(RunContext.in_folder(run_folder).store_url)
    await store.next_epoch("run")
    await store.close()
    file = run_folder / "config.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    inherited = {**os.environ, ALLOW_VARIABLE: f"{CLASS}:SlowWorld"}
    service = await asyncio.create_subprocess_exec(
        *serve_command("environment", str(file), str(run_folder), 0),
        env=service_environment(config, "environment", inherited),
    )
    [address] = config.endpoints.environment
    try:
        await rpc.wait_until_serving(address, START_SECONDS)
        yield address
    finally:
        service.terminate()
        await service.wait()
