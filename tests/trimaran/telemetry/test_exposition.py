"""What processes report to Prometheus."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.observability.metrics import SERIES
from tests.trimaran.wire.fakes import run_service, serving
from trimaran.clients import MetricsClient
from trimaran.errors import InputError
from trimaran.telemetry.exposition import Exposition
from trimaran.telemetry.metrics import METRICS
from trimaran.telemetry.series import ROLLOUT_RUNNING, ROLLOUT_TOKENS, SYNC_STEP, Series
from trimaran.v1 import run_pb2, run_pb2_grpc
from trimaran.wire import rpc

STATES = Series("manager", "runs", "gauge", "runs by state", ("state",))


def values(text: str | bytes) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels, in the order of their names."""
    text = text.decode() if isinstance(text, bytes) else text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_readings_are_taken_when_they_are_asked_for() -> None:
    metrics, state = Exposition(), {"running": 2.0}
    metrics.show(ROLLOUT_RUNNING, lambda: state["running"])
    metrics.show(ROLLOUT_TOKENS, lambda: 10.0)
    metrics.show(STATES, lambda: {"queued": 3.0, "running": 1.0})
    metrics.show(SYNC_STEP, lambda: None)
    state["running"] = 5.0
    reported = values(metrics.text())
    assert reported["trimaran_rollout_running_completions",] == 5.0
    assert reported["trimaran_rollout_tokens_total",] == 10.0
    assert reported["trimaran_manager_runs", "queued"] == 3.0
    assert ("trimaran_weight_sync_live_step",) not in reported
    assert ("process_resident_memory_bytes",) in reported


def test_the_metrics_of_a_step_have_their_axes_as_labels() -> None:
    metrics = Exposition()
    metrics.show_step(
        lambda: {
            "reward/completion/mean": 0.25,
            "reward/term/gsm8k/mean": 0.5,
            "reward/term/style.words/mean": 3.0,
            "weight_sync/bytes": 10.0,
            "weight_sync/bytes/memory": 7.0,
            "validation/task/openai/gsm8k/pass_at/4": 0.875,
        }
    )
    reported = values(metrics.text())
    assert reported["trimaran_step_reward_completion_mean",] == 0.25
    assert reported["trimaran_step_reward_term_mean", "gsm8k"] == 0.5
    assert reported["trimaran_step_reward_term_mean", "style.words"] == 3.0
    assert reported["trimaran_step_weight_sync_bytes",] == 10.0
    assert reported["trimaran_step_weight_sync_bytes_by_transport", "memory"] == 7.0
    assert reported["trimaran_step_validation_task_pass_at_by_k", "4", "openai/gsm8k"] == 0.875


def test_names_are_unique_and_as_prometheus_wants_them() -> None:
    names = [series.name for series in SERIES] + [metric.series for metric in METRICS]
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(r"trimaran_[a-z0-9_]+[a-z0-9]", name)
        assert not name.endswith(("_count", "_sum", "_bucket", "_info"))
    for series in SERIES:
        assert (series.kind == "counter") == series.name.endswith("_total")


class Service(run_pb2_grpc.RunServiceServicer):
    async def GetRun(self, request: run_pb2.GetRunRequest, context: Any) -> run_pb2.GetRunResponse:
        if request.run_id == "wrong":
            raise InputError("run_id: wrong")
        if request.run_id == "slow":
            await asyncio.sleep(60)
        return run_pb2.GetRunResponse()

    async def WatchRun(
        self, request: run_pb2.WatchRunRequest, context: Any
    ) -> AsyncIterator[run_pb2.WatchRunResponse]:
        yield run_pb2.WatchRunResponse()
        await asyncio.sleep(60 if request.run_id == "slow" else 0)


async def test_every_server_counts_its_calls_by_method_and_code() -> None:
    async with (
        serving(run_service(Service())) as address,
        rpc.connect(address) as channel,
        MetricsClient(address) as client,
        serving(run_service(Service())) as idle,
        MetricsClient(idle) as other,
    ):
        stub: Any = run_pb2_grpc.RunServiceStub(channel)
        get, request = stub.GetRun, run_pb2.GetRunRequest
        for _ in range(2):
            await rpc.call(get, request(), 10)
        with pytest.raises(InputError):
            await rpc.call(get, request(run_id="wrong"), 10)
        with pytest.raises(TimeoutError):
            await rpc.call(get, request(run_id="slow"), 0.2)
        whole = rpc.stream(stub.WatchRun, run_pb2.WatchRunRequest(), 10)
        assert len([each async for each in whole]) == 1
        left = rpc.stream(stub.WatchRun, run_pb2.WatchRunRequest(run_id="slow"), 10)
        await anext(left)
        open_calls = ("trimaran_rpc_open_calls", "RunService/WatchRun")
        assert values(await client.get_metrics())[open_calls] == 1
        await left.aclose()
        async with asyncio.timeout(30):
            while values(reported := await client.get_metrics())[open_calls]:
                await asyncio.sleep(0.02)
        assert "RunService" not in await other.get_metrics()  # nothing is shared
    calls = {
        ("OK", "RunService/GetRun"): 2,
        ("INVALID_ARGUMENT", "RunService/GetRun"): 1,
        ("CANCELLED", "RunService/GetRun"): 1,
        ("OK", "RunService/WatchRun"): 1,
        ("CANCELLED", "RunService/WatchRun"): 1,
    }
    found = values(reported)
    assert {labels: found["trimaran_rpc_calls_total", *labels] for labels in calls} == calls
    assert found["trimaran_rpc_duration_seconds_count", "RunService/GetRun"] == 4
