"""RunService: checks, calls and translates. `runs.py` decides."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from services.manager.runs import Runs
from trimaran.errors import InputError
from trimaran.v1 import run_pb2 as pb
from trimaran.v1 import run_pb2_grpc
from trimaran.wire import rpc
from trimaran.wire import run_messages as run_wire
from trimaran.wire.run_messages import encode_run

MAX_REQUEST_BYTES = 4 << 20
"""A run's YAML is some kilobytes."""


class RunServicer(run_pb2_grpc.RunServiceServicer):
    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def CreateRun(self, request: pb.CreateRunRequest, context: Any) -> pb.CreateRunResponse:
        run = await self._runs.create(
            rpc.client(),
            request.request_id,
            request.config,
            list(request.overrides),
            request.priority,
        )
        return pb.CreateRunResponse(run=encode_run(run))

    async def GetRun(self, request: pb.GetRunRequest, context: Any) -> pb.GetRunResponse:
        client, run_id = rpc.client(), _id(request)
        answer = pb.GetRunResponse(run=encode_run(await self._runs.get(client, run_id)))
        if request.with_config:
            answer.config = json.dumps(await self._runs.config(client, run_id))
        return answer

    async def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsResponse:
        unknown = [state for state in request.states if state not in run_wire.STATES]
        if unknown:
            raise InputError(f"states: {unknown[0]} is no state; leave the field out for all")
        runs, token = await self._runs.list(
            rpc.client(),
            [run_wire.STATES[state] for state in request.states],
            request.owner,
            request.page_size,
            request.page_token,
        )
        return pb.ListRunsResponse(runs=map(encode_run, runs), next_page_token=token)

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: Any
    ) -> AsyncIterator[pb.WatchRunResponse]:
        events = self._runs.events(
            rpc.client(), _id(request), request.after_sequence, follow=not request.until_now
        )
        async for event in events:
            yield pb.WatchRunResponse(event=run_wire.encode_event(event))

    async def PauseRun(self, request: pb.PauseRunRequest, context: Any) -> pb.PauseRunResponse:
        return pb.PauseRunResponse(
            run=encode_run(await self._runs.pause(rpc.client(), _id(request)))
        )

    async def ResumeRun(self, request: pb.ResumeRunRequest, context: Any) -> pb.ResumeRunResponse:
        return pb.ResumeRunResponse(
            run=encode_run(await self._runs.resume(rpc.client(), _id(request)))
        )

    async def CancelRun(self, request: pb.CancelRunRequest, context: Any) -> pb.CancelRunResponse:
        return pb.CancelRunResponse(
            run=encode_run(await self._runs.cancel(rpc.client(), _id(request)))
        )

    async def DeleteRun(self, request: pb.DeleteRunRequest, context: Any) -> pb.DeleteRunResponse:
        await self._runs.delete(rpc.client(), _id(request))
        return pb.DeleteRunResponse()

    async def ScaleRun(self, request: pb.ScaleRunRequest, context: Any) -> pb.ScaleRunResponse:
        replicas = request.min_replicas, request.max_replicas
        run = await self._runs.scale(rpc.client(), _id(request), *replicas)
        return pb.ScaleRunResponse(run=encode_run(run))

    async def ListCheckpoints(
        self, request: pb.ListCheckpointsRequest, context: Any
    ) -> pb.ListCheckpointsResponse:
        found = await self._runs.checkpoints(rpc.client(), _id(request))
        return pb.ListCheckpointsResponse(checkpoints=map(run_wire.encode_checkpoint, found))

    async def GetSamples(
        self, request: pb.GetSamplesRequest, context: Any
    ) -> pb.GetSamplesResponse:
        which = request.WhichOneof("which")
        asked: dict[str, Any] = {"limit": request.limit, "offset": request.offset}
        if which:
            asked[which] = getattr(request, which)
        found = await self._runs.samples(rpc.client(), _id(request), **asked)
        return run_wire.encode_samples(found)

    async def GetLogs(
        self, request: pb.GetLogsRequest, context: Any
    ) -> AsyncIterator[pb.GetLogsResponse]:
        client, run_id = rpc.client(), _id(request)
        names = await self._runs.log_names(client, run_id)
        after = request.after_position if request.HasField("after_position") else None
        asked = request.process, request.lines, request.follow, after
        async for part in self._runs.logs(client, run_id, *asked):
            yield pb.GetLogsResponse(lines=part.lines, processes=names, position=part.position)
            names = []

    async def GetLedger(self, request: pb.GetLedgerRequest, context: Any) -> pb.GetLedgerResponse:
        question = request.WhichOneof("question")
        if question is None:
            raise InputError("question: missing; give group or verify")
        if question == "verify" and not request.verify:
            raise InputError("verify: false asks for nothing; give true, or group")
        client, run_id = rpc.client(), _id(request)
        if question == "group":
            answer = await self._runs.ledger_group(client, run_id, request.group)
        else:
            answer = await self._runs.ledger_verify(client, run_id)
        return run_wire.encode_ledger(answer)


def run_service(runs: Runs) -> rpc.Service:
    add = run_pb2_grpc.add_RunServiceServicer_to_server
    return rpc.service(pb.DESCRIPTOR, add, RunServicer(runs))


def _id(request: Any) -> str:
    if not request.run_id:
        raise InputError("run_id: missing; ListRuns names the runs")
    return request.run_id
