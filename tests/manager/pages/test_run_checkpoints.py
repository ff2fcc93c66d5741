"""A run's checkpoints in the browser."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.clients.fake_runs import FakeRuns
from trimaran.run.answers import Checkpoint


async def test_the_newest_come_first_and_the_best_is_marked(
    monkeypatch: pytest.MonkeyPatch, client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    async def saved(*_: Any) -> list[Checkpoint]:
        return [
            Checkpoint(1, "/runs/run/checkpoints/1", "aa", False, saved_at=1000.0),
            Checkpoint(2, "/runs/run/checkpoints/2", "bb", True, 0.5, 3_000_000, 2000.0),
            Checkpoint(3, "/runs/run/checkpoints/3", "cc", True, 0.25, 3_000_000, 3000.0),
        ]

    monkeypatch.setattr(runs, "checkpoints", saved)
    page = (await client.get("/runs/run/checkpoints")).text
    third, second, first = (page.index(f'id="step-{step}"') for step in (3, 2, 1))
    assert third < second < first
    assert page.count(">best<") == 1 and second < page.index(">best<") < first
    assert "checkpoints/2" in page and "checkpoints/1" not in page and "2.9 MiB" in page
