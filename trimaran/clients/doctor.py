"""DoctorService: what a doctor of another host says of its host, its clock and its network."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimaran.clients.base import Client
from trimaran.v1 import doctor_pb2 as pb
from trimaran.v1 import doctor_pb2_grpc
from trimaran.wire import rpc

CALL_SECONDS = 10.0
EXAMINE_SECONDS = 90.0
"""A host whose disks are slow takes long to look at itself."""
MEASURE_SECONDS = 60.0
NUM_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Examined:
    """What another host's doctor has found there."""

    findings: tuple[Mapping[str, str], ...]
    """Each with check, fault, severity, what, why and fix."""
    versions: Mapping[str, str]
    model_bytes: int


class DoctorClient(Client):
    """Speaks to `trimaran doctor --listen`.

    Example:
        async with DoctorClient("10.0.0.2:7990", trust) as client:
            ahead, within = await client.clock_offset()
    """

    _service = doctor_pb2_grpc.DoctorServiceStub

    async def examine(self, config: Mapping[str, Any] | None, has_redis: bool) -> Examined:
        text = "" if config is None else json.dumps(config)
        request = pb.ExamineRequest(config=text, has_redis=has_redis)
        answer: pb.ExamineResponse = await rpc.call(self._stub.Examine, request, EXAMINE_SECONDS)
        names = pb.DoctorFinding.DESCRIPTOR.fields_by_name
        findings = tuple({name: getattr(one, name) for name in names} for one in answer.findings)
        return Examined(findings, dict(answer.versions), answer.model_bytes)

    async def clock_offset(self) -> tuple[float, float]:
        """Seconds by which the other clock is ahead, and how far that may be wrong: half of the shortest
        round trip, as NTP has it."""
        offsets: list[tuple[float, float]] = []
        for _ in range(NUM_ROUNDS):
            before, start = time.time(), time.monotonic()
            there = await self._time()
            half = (time.monotonic() - start) / 2
            offsets.append((half, there - (before + half)))
        half, offset = min(offsets)
        return offset, half

    async def measure(self, start: str) -> tuple[float, float]:
        """Seconds of an answer, and bytes per second, from the doctor at `start` to the one that is asked."""
        request = pb.MeasureRequest(start=start)
        answer: pb.MeasureResponse = await rpc.call(self._stub.Measure, request, MEASURE_SECONDS)
        return answer.seconds, answer.bytes_per_second

    async def time_link(self) -> tuple[float, float]:
        """The same from the doctor that is asked to this process."""
        _, half = await self.clock_offset()
        count, start = 0, time.monotonic()
        request = pb.SendZerosRequest()
        async for each in rpc.stream(self._stub.SendZeros, request, CALL_SECONDS):
            count += len(each.zeros)
        return half * 2, count / (time.monotonic() - start)

    async def _time(self) -> float:
        return (await rpc.call(self._stub.GetTime, pb.GetTimeRequest(), CALL_SECONDS)).time
