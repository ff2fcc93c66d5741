"""An engine from outside services/ behind the real server, in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from services.weight_sync.data.manifest import list_digests
from tests.extending.packages import install
from tests.rollout import replicas
from tests.rollout.replicas import generate, sampling

PLACE = "tests.rollout.smallest_engine:SmallestEngine"


def test_an_engine_is_a_class_and_an_entry_point(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = install(tmp_path / "packages", {"trimaran.engines": {"smallest": PLACE}})
    monkeypatch.syspath_prepend(packages)  # for this process, which checks the configuration too
    monkeypatch.setenv("PYTHONPATH", str(packages))
    replica = replicas.start_replica("smallest", model, tmp_path)

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
