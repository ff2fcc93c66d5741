"""A real reward service in a process of its own, and a client with many groups under way."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.reward.plain import cpu_seconds
from commands.cli.serve.serve import serve_command
from trimaran.run.context import RunContext
from trimaran.run.network import LOOPBACK
from trimaran.store import open_store
from trimaran.trust.allowed import ALLOW_VARIABLE
from trimaran.types import Caller, Group, Verdict
from trimaran.v1 import reward_pb2, reward_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc

START_SECONDS = 60.0
CALL_SECONDS = 1200.0
STOP_SECONDS = 20.0
CONCURRENCY = 32
"""Groups under way at a time; a controller sends all groups of a step at once."""


@dataclass(frozen=True, slots=True)
class Service:
    address: str
    process: psutil.Process

    def processes(self) -> list[psutil.Process]:
        """Its own, and all that it started."""
        return [self.process, *self.process.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """Of all that live; those that ended are not counted."""
        return sum(map(cpu_seconds, self.processes()))


@asynccontextmanager
async def running_service(
    work: Path, rules: dict[str, Any], allow: Sequence[str] = (), **reward: Any
) -> AsyncIterator[Service]:
    address = LOOPBACK.free_address()
    config = {
        "model": {"path": "unused"},
        "data": {"train": "unused"},
        "reward": {"rules": rules, "workers": 2, **reward},
        "endpoints": {"reward": address},
    }
    path = work / "run.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    store = await open_store(RunContext.in_folder(work).store_url)
    await store.next_epoch("bench")
    await store.close()
    process = _start(serve_command("reward", str(path), str(work), 0), allow, work / "service.log")
    try:
        await rpc.wait_until_serving(address, START_SECONDS)
        yield Service(address, psutil.Process(process.pid))
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def _start(command: Sequence[str], allow: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {ALLOW_VARIABLE: "\n".join(allow)}
    with open(log, "w", encoding="utf-8") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file)


def encode(groups: Sequence[Group]) -> list[reward_pb2.ScoreGroupRequest]:
    """Before the clock starts: the rollout service and the controller do this elsewhere."""
    caller = wire.encode_caller(Caller("bench", 1))
    return [wire.encode_score_request(caller, group) for group in groups]


async def score(
    service: Service,
    requests: Sequence[reward_pb2.ScoreGroupRequest],
    concurrency: int = CONCURRENCY,
) -> tuple[float, list[tuple[Verdict, ...]]]:
    """Seconds from the first request to the last answer, and the verdicts in order."""
    answers: list[Any] = [None] * len(requests)
    queue = iter(enumerate(requests))
    async with rpc.connect(service.address) as channel:
        stub: Any = reward_pb2_grpc.RewardServiceStub(channel)

        async def work() -> None:
            for number, request in queue:
                answers[number] = await rpc.call(stub.ScoreGroup, request, CALL_SECONDS)

        begin = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        seconds = time.perf_counter() - begin
    return seconds, [tuple(map(wire.decode_verdict, answer.verdicts)) for answer in answers]
