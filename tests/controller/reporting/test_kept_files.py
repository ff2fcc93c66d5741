"""Metrics of a lost folder, from the run's events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.controller.reporting.kept_files import bring_back_metrics
from tests.extending.memory_store import MemoryStore
from trimaran.run.runs import EventKind, Run, RunEvent, RunState, event_to_tree, events_stream
from trimaran.telemetry.run_files import METRICS_NAME, MetricsWriter


@pytest.mark.parametrize("through", [0, 2])
async def test_rows_come_back_as_far_as_their_events_are_kept(
    through: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, stream = MemoryStore(), events_stream("run")
    for step in range(1, 6):
        event = RunEvent(0, EventKind.STEP, Run("run", RunState.RUNNING, step, 9))
        await store.extend(stream, [event_to_tree(event)])
    await store.trim(stream, through)
    metrics = MetricsWriter(tmp_path)
    await bring_back_metrics(store, "run", metrics)
    metrics.close()
    rows = [json.loads(line)["step"] for line in (tmp_path / METRICS_NAME).open()]
    assert rows == list(range(through + 1, 6))
    reported = [record.getMessage() for record in caplog.records]
    assert [f"metrics.jsonl begins at step {through + 1}" in text for text in reported] == [
        True
    ] * bool(through)
