"""An engine from outside services/ behind the real server, in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from services.weight_sync.data.manifest import list_digests
from tests.rollout import replicas
from tests.rollout.replicas import generate, sampling
from trimaran import choices

PLACE = "tests.rollout.smallest_engine:SmallestEngine"
SERVE = f"""
from trimaran import choices
choices.ENGINES["smallest"] = "{PLACE}"
{replicas.SERVE}"""


def test_an_engine_is_a_class_and_a_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(choices.ENGINES, "smallest", PLACE)
    replica = replicas.start_replica("smallest", model, tmp_path, SERVE)

    async def body() -> None:
        async with replica.client() as client:
            for step in (1, 2):
                version = await replica.publish(client, {"a": torch.full((8, 2), float(step))})
                group = await generate(client, sampling(2, 4))
                assert [one.token_ids_T for one in group.completions_G] == [(step,)] * 2
                assert {one.segments[0].version for one in group.completions_G} == {version}
                digests = await client.read_back(version, ((0, 1),), replicas.TIMEOUT)
                assert digests == tuple(list_digests(replica.manifest)[:1])

    try:
        asyncio.run(body())
    finally:
        replicas.stop(replica)
