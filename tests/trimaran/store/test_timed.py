"""How long calls of a store take."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimaran.store import ConflictError, open_store, timed
from trimaran.telemetry.exposition import Exposition, StoreSeconds


async def test_each_call_is_counted_also_one_that_fails(tmp_path: Path) -> None:
    metrics, seconds = Exposition(), StoreSeconds()
    metrics.show_store(seconds)
    store = timed(await open_store(f"sqlite:{tmp_path}/store.sqlite"), seconds)
    await store.put("key", 1)
    with pytest.raises(ConflictError):
        await store.put("key", 2, expected=0)
    assert (record := await store.get("key")) and record.value == 1
    assert store.durability == ""
    await store.close()
    reported = metrics.text().decode()
    assert 'trimaran_store_duration_seconds_count{call="put"} 2.0' in reported
    assert 'trimaran_store_duration_seconds_count{call="get"} 1.0' in reported
