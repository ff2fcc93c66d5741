"""`trimaran doctor --listen`: answers doctors of other hosts, until its time is over."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from commands.doctor.examine import examine, facts_for_others
from commands.doctor.system import System
from trimaran.clients.doctor import DoctorClient
from trimaran.config import parse_config
from trimaran.trust.access import Trust
from trimaran.v1 import doctor_pb2 as pb
from trimaran.v1 import doctor_pb2_grpc
from trimaran.wire import rpc

CHUNK = bytes(1 << 20)
MAX_CHUNKS = 256
SEND_SECONDS = 2.0


class DoctorServicer(doctor_pb2_grpc.DoctorServiceServicer):
    def __init__(self, trust: Trust, now: Callable[[], float] = time.time) -> None:
        self._trust, self._now = trust, now

    async def Examine(self, request: pb.ExamineRequest, context: Any) -> pb.ExamineResponse:
        config = parse_config(json.loads(request.config)) if request.config else None
        system = System(os.environ)
        findings = await asyncio.to_thread(examine, system, config, has_redis=request.has_redis)
        versions, model_bytes = await asyncio.to_thread(facts_for_others, system, config)
        return pb.ExamineResponse(
            findings=[pb.DoctorFinding(**finding.to_tree()) for finding in findings],
            versions=versions,
            model_bytes=model_bytes,
        )

    async def GetTime(self, request: pb.GetTimeRequest, context: Any) -> pb.GetTimeResponse:
        return pb.GetTimeResponse(time=self._now())

    async def Measure(self, request: pb.MeasureRequest, context: Any) -> pb.MeasureResponse:
        async with DoctorClient(request.start, self._trust) as client:
            seconds, bytes_per_second = await client.time_link()
        return pb.MeasureResponse(seconds=seconds, bytes_per_second=bytes_per_second)

    async def SendZeros(
        self, request: pb.SendZerosRequest, context: Any
    ) -> AsyncIterator[pb.SendZerosResponse]:
        chunk, end = pb.SendZerosResponse(zeros=CHUNK), time.monotonic() + SEND_SECONDS
        for _ in range(MAX_CHUNKS):
            yield chunk
            if time.monotonic() > end:
                return


def doctor_server(address: str, trust: Trust, now: Callable[[], float] = time.time) -> rpc.Server:
    """Raises InputError for an address that is not this host's or is taken, and for one beyond loopback
    without token and TLS."""
    add: Any = doctor_pb2_grpc.add_DoctorServiceServicer_to_server  # pyright: ignore
    return rpc.Server(
        address, [rpc.service(pb.DESCRIPTOR, add, DoctorServicer(trust, now))], trust=trust
    )
