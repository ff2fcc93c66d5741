"""What distinguishes runs of one id on a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

from commands.launch.ray.naming import own_prefix
from trimaran.store import open_store


async def test_every_launcher_of_a_run_has_its_prefix_whatever_it_calls_the_store(
    tmp_path: Path,
) -> None:
    (tmp_path / "by-another-name").symlink_to(tmp_path)

    first = await open_store(f"sqlite:{tmp_path}/run.sqlite")
    second = await open_store(f"sqlite:{tmp_path}/by-another-name/run.sqlite")
    other = await open_store(f"sqlite:{tmp_path}/other.sqlite")
    try:
        at_once = await asyncio.gather(own_prefix(first, "demo-1"), own_prefix(second, "demo-1"))
        assert set(at_once) == {await own_prefix(second, "demo-1")}
        assert at_once[0].startswith("demo-1~") and at_once[0].endswith("/")
        assert await own_prefix(other, "demo-1") not in at_once
    finally:
        for store in (first, second, other):
            await store.close()
