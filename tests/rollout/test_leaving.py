"""A replica that ends removes the names that it shares, and waits for nobody."""

from __future__ import annotations

import asyncio
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest

from services.rollout import server
from trimaran.config import parse_config
from trimaran.errors import UnavailableError
from trimaran.run_context import RunContext
from trimaran.shared_memory import note_of


def test_what_the_replica_itself_still_maps_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait would be in the event loop."""
    shared: list[SharedMemory] = []
    closed: list[float] = []

    class Engine:
        async def start(self) -> None:
            shared.append(SharedMemory(create=True, size=1))

        async def close(self) -> None:
            closed.append(time.monotonic())

    async def away(url: str | None) -> Any:
        raise UnavailableError("the store is away")

    monkeypatch.setattr(server, "create_engine", lambda config, device, place: Engine())
    monkeypatch.setattr(server, "open_store", away)
    monkeypatch.setattr(server, "check_tensors", lambda config, trust, host: None)
    config = parse_config(
        {
            "model": {"path": "unused"},
            "data": {"train": "unused.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
            "rollout": {"device": "cpu"},
        }
    )
    try:
        with pytest.raises(UnavailableError, match="the store is away"):
            asyncio.run(server.serve(config, RunContext.in_folder(tmp_path)))
        assert time.monotonic() - closed[0] < 1.5
        assert note_of(tmp_path, "rollout-0").is_file(), "for who has started it"
    finally:
        for memory in shared:
            memory.close()
            memory.unlink()
