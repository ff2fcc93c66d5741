"""The service over gRPC, with the real rules in real workers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from services.reward.server import serve
from tests.reward.test_pool import group
from trimaran import rpc
from trimaran.clients import RewardClient
from trimaran.config import RunConfig, parse_config
from trimaran.errors import InputError
from trimaran.launch.endpoints import free_address
from trimaran.types import Caller, Score


def configure(rules: dict[str, float]) -> RunConfig:
    return parse_config(
        {
            "model": {"path": "unused"},
            "data": {"train": "unused"},
            "reward": {"rules": rules, "workers": 1},
            "endpoints": {"reward": free_address(set())},
        }
    )


def test_answers_with_one_verdict_a_completion(tmp_path: Path) -> None:
    config = configure({"exact_match": 2.0})
    address = config.endpoints.reward
    assert address

    async def run() -> None:
        service = asyncio.create_task(serve(config, tmp_path))
        await rpc.wait_until_serving(address, 30)
        async with RewardClient(address, Caller("run", 1)) as client:
            verdicts = await client.score_group(group(["wrong", "right"], tmp_path / "log"), 30)
        assert verdicts == (Score(0.0, {"exact_match": 0.0}), Score(2.0, {"exact_match": 1.0}))
        service.cancel()
        with pytest.raises(asyncio.CancelledError):
            await service

    asyncio.run(run())


def test_an_unknown_rule_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exact_match"):
        asyncio.run(serve(configure({"exactmatch": 1.0}), tmp_path))
