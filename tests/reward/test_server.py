"""The service over gRPC, with real rules and functions in real workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.reward.server import serve
from tests import configs
from tests.first_epoch import draw_epoch
from tests.reward.groups import group_of
from tests.trimaran.telemetry.test_exposition import values
from trimaran.clients import MetricsClient, RewardClient
from trimaran.config import RunConfig
from trimaran.run.context import RunContext
from trimaran.run.network import LOOPBACK
from trimaran.trust.allowed import ALLOW_VARIABLE
from trimaran.types import Caller, Score
from trimaran.wire import rpc

SECONDS = 60.0


def configure(rules: dict[str, Any], **reward: Any) -> RunConfig:
    section = {"rules": rules, "workers": 1, **reward}
    return configs.configure(reward=section, endpoints={"reward": LOOPBACK.free_address()})


@asynccontextmanager
async def serving(config: RunConfig, run_folder: Path) -> AsyncIterator[RewardClient]:
    address = config.endpoints.reward
    assert address
    await draw_epoch(run_folder, "run")
    service = asyncio.create_task(serve(config, RunContext.in_folder(run_folder)))
    await rpc.wait_until_serving(address, SECONDS)
    async with RewardClient(address, Caller("run", 1)) as client:
        yield client
    service.cancel()
    with pytest.raises(asyncio.CancelledError):
        await service


async def test_prometheus_sees_calls_and_workers(tmp_path: Path) -> None:
    async with serving(configure({"exact_match": 2.0}), tmp_path) as client:
        await client.score_group(group_of(["wrong", "right"]), SECONDS)
        async with MetricsClient(client.address) as process:
            known = values(await process.get_metrics())
    assert known["trimaran_rpc_calls_total", "OK", "RewardService/ScoreGroup"] == 1
    assert known["trimaran_reward_queued_batches",] == 0
    assert known["trimaran_reward_workers", "busy"] == 0
    assert known["trimaran_reward_workers", "idle"] == 1


async def test_a_weighted_sum_with_a_function_that_the_operator_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW_VARIABLE, "tests.reward.unruly:*")
    unruly = {"function": "tests.reward.unruly:answer", "weight": -0.5, "maximum": 1}
    async with serving(configure({"exact_match": 1.0, "unruly": unruly}), tmp_path) as client:
        verdicts = await client.score_group(group_of(["right", "exit", "wrong"]), SECONDS)
    assert verdicts == (
        Score(0.5, {"exact_match": 1.0, "unruly": 1.0}, prediction="right"),
        Score(-0.5, {"exact_match": 0.0, "unruly": 1.0}, True, prediction="exit"),
        Score(0.0, {"exact_match": 0.0, "unruly": 0.0}, prediction="wrong"),
    )


@pytest.mark.e2e
async def test_a_caller_that_gives_up_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW_VARIABLE, "tests.reward.unruly:answer")
    rules = {"a": {"function": "tests.reward.unruly:answer"}}
    async with serving(configure(rules, timeout=2), tmp_path) as client:
        with pytest.raises(Exception, match="no answer within 1 s"):
            await client.score_group(group_of(["hang"]), 1)
        assert await client.score_group(group_of(["right"]), SECONDS) == (Score(1.0, {"a": 1.0}),)
