"""The promises of `tests/launch/test_children.py` on real Ray, run on a host of its own by
`tests/launch/test_on_ray.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.stages import RayStage, Stage
from tests.launch.test_children import *  # noqa: F403 - its tests, with the fixture below
from trimaran.run.ray.cluster import Cluster


class RealRayStage(RayStage):
    def cluster(self) -> Cluster:
        return Cluster("auto")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return RealRayStage(tmp_path)
