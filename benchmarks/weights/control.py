"""The control plane with 1,000 replicas: registrations and heartbeats over gRPC, a plan, a publish.

Weight sync's coordinator, store and server are the real ones, in a process of their own; the
trainer and the replicas that it calls are stand-ins in that process, which answer at once. So the
seconds of a publish are what weight sync itself takes, without transfers and without its own calls.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path

from benchmarks.results_file import Row
from benchmarks.weights.control_side import ControlSide, Usage, stand_in_peer
from benchmarks.weights.versions import RUN_ID
from benchmarks.weights.workers import Worker
from trimaran.clients import Registration, WeightSyncClient
from trimaran.types import Caller, PolicyVersion, Replica

REPLICAS = 1000
CONCURRENCY = 64
HEARTBEAT_ROUNDS = 4
PUBLISHES = 6
SETTLE_SECONDS = 2.5
"""In which a sample is read back from all replicas, as every other publish starts one."""
CALL_SECONDS = 60.0
SERVER_CORES, CLIENT_CORES = (0,), (1,)


def measure_control(model: Path, work: Path) -> tuple[list[Row], str]:
    os.sched_setaffinity(0, set(CLIENT_CORES))
    with Worker(ControlSide, model, work, REPLICAS, cores=SERVER_CORES) as server:
        return asyncio.run(_measure(server))


async def _measure(server: Worker) -> tuple[list[Row], str]:
    idle: Usage = server.call("usage")
    plans: dict[str, float] = server.call("time_plans")
    async with WeightSyncClient(server.call("address"), Caller(RUN_ID, 0)) as client:
        replicas = _Replicas(client)
        register_seconds = await replicas.register()
        before: Usage = server.call("usage")
        beating = time.perf_counter()
        for _ in range(HEARTBEAT_ROUNDS):
            await replicas.beat(None)
        beating = time.perf_counter() - beating
        cpu_of_beats = server.call("usage").cpu_seconds - before.cpu_seconds
        join_seconds: float = server.call("publish_and_join", 1)
        publishes, cpu_of_publishes = [], []
        for number in range(PUBLISHES):
            await replicas.beat(server.call("live"))
            before = server.call("usage")
            publishes.append(server.call("publish", 2 + number))
            await asyncio.sleep(SETTLE_SECONDS)
            cpu_of_publishes.append(server.call("usage").cpu_seconds - before.cpu_seconds)
        full: Usage = server.call("usage")
    beats = HEARTBEAT_ROUNDS * REPLICAS
    share = cpu_of_beats / beats * REPLICAS / replicas.period
    growth = (full.resident_bytes - idle.resident_bytes) / 2**20
    rows = [
        *(Row(f"plan_seconds_{name}", plans[name], "s", 1.0, False) for name in plans),
        Row("register_seconds_all", register_seconds, "s", None, False),
        Row("heartbeats_handled", beats / beating, "1/s", None, True),
        Row("heartbeats_cpu_share", share, "cores", None, False),
        Row("first_publish_and_full_proofs_seconds", join_seconds, "s", None, False),
        Row("publish_seconds", statistics.median(publishes), "s", None, False),
        Row(
            "publish_cpu_seconds_with_its_sample",
            statistics.fmean(cpu_of_publishes),
            "s",
            None,
            False,
        ),
        Row("memory_growth", growth, "MiB", None, False),
        Row("memory", full.resident_bytes / 2**20, "MiB", None, False),
    ]
    return rows, (
        f"{REPLICAS} replicas, manifest of SmolLM2-135M, server on core 0, their client on core 1;"
        f" a heartbeat a replica each {replicas.period:g} s; every other publish starts a sample"
    )


class _Replicas:
    """Their own calls, all over one connection."""

    def __init__(self, client: WeightSyncClient) -> None:
        self._client = client
        self._limit = asyncio.Semaphore(CONCURRENCY)
        self._registrations: list[Registration] = []

    @property
    def period(self) -> float:
        """Seconds between two heartbeats of a replica."""
        return self._registrations[0].heartbeat_seconds

    async def register(self) -> float:
        begin = time.perf_counter()
        self._registrations = await asyncio.gather(*(self._register(n) for n in range(REPLICAS)))
        return time.perf_counter() - begin

    async def _register(self, number: int) -> Registration:
        replica = Replica(f"rollout-{number}", "127.0.0.1:1")
        async with self._limit:
            return await self._client.register_replica(replica, stand_in_peer(number), CALL_SECONDS)

    async def beat(self, live: PolicyVersion | None) -> None:
        """Once each, as fast as they are answered."""
        await asyncio.gather(*(self._beat(number, live) for number in range(REPLICAS)))

    async def _beat(self, number: int, live: PolicyVersion | None) -> None:
        incarnation = self._registrations[number].incarnation
        async with self._limit:
            name = f"rollout-{number}"
            known = await self._client.heartbeat(name, incarnation, live, CALL_SECONDS)
        if not known:
            raise RuntimeError(f"{name} is not known to weight sync")
