"""The promises of `tests/launch/test_children.py` on real Ray, run on a host of its own by
`tests/launch/test_on_ray.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.stages import RayStage
from tests.launch.test_children import *  # noqa: F403 - its tests, with the fixture below
from tests.launch.test_children import SECONDS, Body, opened
from trimaran.run.ray.cluster import Cluster


class RealRayStage(RayStage):
    def cluster(self) -> Cluster:
        return Cluster("auto")


@pytest.fixture
def hold(tmp_path: Path) -> Callable[[Body], None]:
    async def run(body: Body) -> None:
        async with asyncio.timeout(SECONDS), opened(RealRayStage(tmp_path)) as (stage, children):
            await body(stage, children)

    return lambda body: asyncio.run(run(body))
