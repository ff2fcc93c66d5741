"""RunService over the wire, as somebody without our code calls it, and many who watch."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.manager.run_data.run_stores import RunStores
from services.manager.run_data.tails import Tails, watch
from tests.manager.fakes import (
    FakeLauncher,
    FakeProcesses,
    managing,
    specification,
    until,
)
from trimaran.run.context import RunContext
from trimaran.run.runs import EventKind, Run, RunEvent, RunState
from trimaran.store import open_store
from trimaran.trust.access import LOCAL

SERVICE = "trimaran.v1.RunService"


class Stranger:
    """Knows an address, and learns the rest by reflection, as grpcurl does."""

    def __init__(self, channel: Any, pool: descriptor_pool.DescriptorPool) -> None:
        self._channel = channel
        self._service = pool.FindServiceByName(SERVICE)

    @classmethod
    async def meet(cls, channel: Any) -> Stranger:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
        pool = descriptor_pool.DescriptorPool()
        async for answer in stub.ServerReflectionInfo(iter([request])):
            # A file comes before those that it imports.
            for data in reversed(answer.file_descriptor_response.file_descriptor_proto):
                pool.Add(descriptor_pb2.FileDescriptorProto.FromString(data))
        return cls(channel, pool)

    def _method(self, name: str) -> tuple[str, Any, Any, bool]:
        method = self._service.FindMethodByName(name)
        request = message_factory.GetMessageClass(method.input_type)
        response = message_factory.GetMessageClass(method.output_type)
        return f"/{SERVICE}/{name}", request, response, method.server_streaming

    async def call(self, name: str, tree: dict[str, Any]) -> Any:
        path, request, response, streams = self._method(name)
        call: Any = self._channel.unary_stream if streams else self._channel.unary_unary
        method = call(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        message = json_format.ParseDict(tree, request())
        if streams:
            return [json_format.MessageToDict(item) async for item in method(message)]
        return json_format.MessageToDict(await method(message))


async def test_a_stranger_uses_every_method(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with (
        managing(tmp_path / "runs", launcher) as served,
        grpc.aio.insecure_channel(served.address) as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stranger = await Stranger.meet(channel)
        text = specification(tmp_path)
        create = {"requestId": "r", "config": text, "overrides": ["run.steps=30"]}
        run = (await stranger.call("CreateRun", create))["run"]
        assert run["numSteps"] == 30 and run["state"] == "STATE_QUEUED"
        assert (await stranger.call("CreateRun", create))["run"]["runId"] == run["runId"]
        name = {"runId": run["runId"]}
        await until(lambda: launcher.there.get(run["runId"]))
        assert (await stranger.call("GetRun", name))["run"]["state"] == "STATE_STARTING"
        config = json.loads((await stranger.call("GetRun", name | {"withConfig": True}))["config"])
        assert config["run"]["steps"] == 30 and "learning_rate" in config["trainer"]
        listed = await stranger.call("ListRuns", {"states": ["STATE_STARTING"]})
        assert [found["runId"] for found in listed["runs"]] == [run["runId"]]
        scaled = await stranger.call("ScaleRun", name | {"minReplicas": 1, "maxReplicas": 3})
        assert scaled["run"]["replicas"] == {"min": 1, "max": 3, "granted": 1}
        assert await stranger.call("ListCheckpoints", name) == {}
        assert await stranger.call("GetSamples", name) == {}
        ledger = await stranger.call("GetLedger", name | {"verify": True})
        assert ledger["sound"] and "records" in json.loads(ledger["json"])
        logs = tmp_path / "runs" / run["runId"] / "logs"
        (logs / "launcher.log").write_text("hello\n")
        assert await stranger.call("GetLogs", name) == [
            {"lines": ["hello"], "processes": ["launcher"], "position": "6"}
        ]

        def paused() -> bool:
            launcher.there.clear()  # its processes follow the goal
            return served.manager.records.get(run["runId"]).state is RunState.PAUSED

        assert (await stranger.call("PauseRun", name))["run"]["state"] == "STATE_PAUSING"
        await until(paused)
        assert (await stranger.call("ResumeRun", name))["run"]["state"] == "STATE_QUEUED"
        await stranger.call("PauseRun", name)
        await until(paused)
        assert (await stranger.call("CancelRun", name))["run"]["state"] == "STATE_CANCELLED"
        events = await stranger.call("WatchRun", name)
        assert events[-1]["event"]["kind"] == "KIND_FINISHED"
        await stranger.call("DeleteRun", name)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stranger.call("GetRun", name)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def numbers(tails: Tails, run: RunContext, is_over: Any, pause: float = 0.0) -> list[int]:
    seen: list[int] = []
    async for event in watch(tails, run.run_id, run.store_url, 0, is_over):
        seen.append(event if isinstance(event, int) else event.sequence)
        if pause:
            await asyncio.sleep(pause)
    return seen


async def test_a_thousand_watchers_and_a_slow_one(tmp_path: Path) -> None:
    """They share one tail. The slow one falls behind what is kept, and still sees everything."""
    run = RunContext("demo", tmp_path, f"sqlite:{tmp_path / 'store.sqlite'}")
    store, stores = await open_store(run.store_url), RunStores()
    tails = Tails(stores, poll=0.05, kept=10)
    over = asyncio.Event()
    tasks = [
        asyncio.create_task(numbers(tails, run, over.is_set, 0.005 if i == 0 else 0.0))
        for i in range(1000)
    ]
    processes = FakeProcesses(store, run)
    for step in range(24):
        await processes.emit(EventKind.STEP, Run("demo", RunState.RUNNING, step, 24), loss=1.0)
    await until(lambda: tails.num_watchers == 1000)
    over.set()
    seen = await asyncio.gather(*tasks)
    assert all(each == list(range(1, 25)) for each in seen)
    assert tails.num_watchers == 0
    await stores.close()
    await store.close()


async def test_what_is_no_longer_kept_is_said(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        run = await served.runs.create(LOCAL, "r", specification(tmp_path), (), 0)
        await until(lambda: launcher.contexts.get(run.run_id))
        store = await open_store(launcher.contexts[run.run_id].store_url)
        processes = FakeProcesses(store, launcher.contexts[run.run_id])
        for step in range(5):
            await processes.emit(EventKind.STEP, Run(run.run_id, RunState.RUNNING, step, 20))
        await store.trim(f"events/{run.run_id}", 3)
        found: list[RunEvent] = []
        async for event in served.runs.events(LOCAL, run.run_id, 1, follow=False):
            found.append(event)
        assert (found[0].kind, found[0].sequence) == (EventKind.MISSED, 3)
        assert found[1].sequence == 4
        await store.close()
