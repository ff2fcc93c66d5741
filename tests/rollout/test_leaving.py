"""A replica that ends removes the names that it shares, and waits for nothing."""

from __future__ import annotations

import asyncio
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest

from services.rollout import server
from tests.configs import configure
from trimaran.errors import UnavailableError
from trimaran.host.shared_memory import ENDING_SECONDS, note_of, remove_left
from trimaran.run.context import RunContext


def test_what_the_replica_itself_still_maps_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait would be in the event loop."""
    shared: list[SharedMemory] = []
    waits: list[float] = []

    class Engine:
        async def start(self) -> None:
            shared.append(SharedMemory(create=True, size=1))

        async def close(self) -> None:
            waits.clear()

    def noted(note: Path, seconds: float = ENDING_SECONDS) -> list[str]:
        waits.append(seconds)
        return remove_left(note, seconds)

    async def away(url: str | None) -> Any:
        raise UnavailableError("the store is away")

    monkeypatch.setattr(server, "create_engine", lambda config, device, place: Engine())
    monkeypatch.setattr(server, "open_store", away)
    monkeypatch.setattr(server, "remove_left", noted)
    monkeypatch.setattr(server, "check_tensors", lambda config, trust, host: None)
    config = configure(rollout={"device": "cpu"})
    try:
        with pytest.raises(UnavailableError, match="the store is away"):
            asyncio.run(server.serve(config, RunContext.in_folder(tmp_path)))
        assert waits == [0.0]
        assert note_of(tmp_path, "rollout-0").is_file(), "for who has started it"
    finally:
        for memory in shared:
            memory.close()
            memory.unlink()
