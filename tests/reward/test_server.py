"""The service over gRPC, with real rules and functions in real workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from services.reward.server import serve
from tests.first_epoch import draw_epoch
from tests.reward.groups import group_of
from tests.trimaran.telemetry.test_exposition import values
from trimaran.clients import MetricsClient, RewardClient
from trimaran.config import RunConfig, parse_config
from trimaran.run.context import RunContext
from trimaran.run.network import LOOPBACK
from trimaran.trust.allowed import ALLOW_VARIABLE
from trimaran.types import Caller, Score
from trimaran.wire import rpc

SECONDS = 60.0


def configure(rules: dict[str, Any], **reward: Any) -> RunConfig:
    return parse_config(
        {
            "model": {"path": "unused"},
            "data": {"train": "unused"},
            "reward": {"rules": rules, "workers": 1, **reward},
            "endpoints": {"reward": LOOPBACK.free_address()},
        }
    )


def while_serving(
    config: RunConfig, run_folder: Path, use: Callable[[RewardClient], Awaitable[None]]
) -> None:
    address = config.endpoints.reward
    assert address

    async def run() -> None:
        await draw_epoch(run_folder, "run")
        service = asyncio.create_task(serve(config, RunContext.in_folder(run_folder)))
        await rpc.wait_until_serving(address, SECONDS)
        async with RewardClient(address, Caller("run", 1)) as client:
            await use(client)
        service.cancel()
        with pytest.raises(asyncio.CancelledError):
            await service

    asyncio.run(run())


def test_prometheus_sees_calls_and_workers(tmp_path: Path) -> None:
    async def use(client: RewardClient) -> None:
        await client.score_group(group_of(["wrong", "right"]), SECONDS)
        async with MetricsClient(client.address) as process:
            known = values(await process.get_metrics())
        assert known["trimaran_rpc_calls_total", "OK", "RewardService/ScoreGroup"] == 1
        assert known["trimaran_reward_queued_batches",] == 0
        assert known["trimaran_reward_workers", "busy"] == 0
        assert known["trimaran_reward_workers", "idle"] == 1

    while_serving(configure({"exact_match": 2.0}), tmp_path, use)


def test_a_weighted_sum_with_a_function_that_the_operator_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW_VARIABLE, "tests.reward.unruly:*")
    rules = {
        "exact_match": 1.0,
        "unruly": {"function": "tests.reward.unruly:answer", "weight": -0.5, "maximum": 1},
    }

    async def use(client: RewardClient) -> None:
        verdicts = await client.score_group(group_of(["right", "exit", "wrong"]), SECONDS)
        assert verdicts == (
            Score(0.5, {"exact_match": 1.0, "unruly": 1.0}, prediction="right"),
            Score(-0.5, {"exact_match": 0.0, "unruly": 1.0}, True, prediction="exit"),
            Score(0.0, {"exact_match": 0.0, "unruly": 0.0}, prediction="wrong"),
        )

    while_serving(configure(rules), tmp_path, use)


@pytest.mark.e2e
def test_a_caller_that_gives_up_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW_VARIABLE, "tests.reward.unruly:answer")

    async def use(client: RewardClient) -> None:
        with pytest.raises(Exception, match="no answer within 1 s"):
            await client.score_group(group_of(["hang"]), 1)
        (verdict,) = await client.score_group(group_of(["right"]), SECONDS)
        assert verdict == Score(1.0, {"a": 1.0})

    rules = {"a": {"function": "tests.reward.unruly:answer"}}
    while_serving(configure(rules, timeout=2), tmp_path, use)
