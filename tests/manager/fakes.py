"""A launcher without processes, and a manager around it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from services.manager.reconcile import Times
from services.manager.serve import Serving, serving
from services.manager.settings import ManagerSettings
from trimaran.run.context import RunContext
from trimaran.run.launchers import Presence
from trimaran.run.lease import holder_name
from trimaran.run.runs import (
    EventKind,
    Run,
    RunEvent,
    RunState,
    event_to_tree,
    events_stream,
    run_to_tree,
)
from trimaran.store import Lease, Store, open_store

DEADLINE = 30.0
FAST = Times(
    look=0.05,
    first_lease=DEADLINE,
    lapse=0.05,
    first_pause=0.01,
    longest_pause=0.05,
    steady=300.0,
    max_deaths=3,
)


@dataclass
class FakeLauncher:
    """Says that launchers are there which a test has started, and records what it was asked."""

    events: list[str] = field(default_factory=list)
    there: dict[str, Presence] = field(default_factory=dict)
    contexts: dict[str, RunContext] = field(default_factory=dict)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    dies_at_once: bool = False

    async def start(self, run: RunContext, secrets: Mapping[str, str]) -> None:
        self.events.append(f"start {run.run_id}")
        self.secrets[run.run_id] = dict(secrets)
        self.contexts[run.run_id] = run
        if not self.dies_at_once:
            self.there[run.run_id] = Presence.THERE

    async def kill(self, run: RunContext) -> None:
        self.events.append(f"kill {run.run_id}")
        self.there[run.run_id] = Presence.GONE

    async def find(self, runs: Sequence[RunContext]) -> Mapping[str, Presence]:
        return {run.run_id: self.there.get(run.run_id, Presence.GONE) for run in runs}


class FakeProcesses:
    """What the processes of a run would write into its store."""

    def __init__(self, store: Store, run: RunContext) -> None:
        self.store, self.run = store, run
        self.lease: Lease | None = None
        self.holder = holder_name(os.getpid())

    async def report(self, state: RunState, step: int = 0, **more: Any) -> None:
        run = Run(self.run.run_id, state, step, 20, **more)
        await self.store.put(f"run/{self.run.run_id}", run_to_tree(run))
        kind = EventKind.FINISHED if state.has_ended else EventKind.STATE
        await self.emit(kind, run)

    async def emit(self, kind: EventKind, run: Run, **values: float) -> None:
        await self.append(RunEvent(0, kind, run, values, "", time.time()))

    async def append(self, event: RunEvent) -> None:
        await self.store.extend(events_stream(self.run.run_id), [event_to_tree(event)])

    async def take_lease(self, seconds: float = 60.0) -> None:
        name = f"launcher/{self.run.run_id}"
        self.lease = await self.store.acquire(name, self.holder, seconds)

    async def listen(self, *replicas: int) -> None:
        endpoints = {f"rollout-{i}": f"127.0.0.1:{21000 + i}" for i in replicas}
        await self.store.put(f"endpoints/{self.run.run_id}", {"controller": "x", **endpoints})

    async def record(self, kind: str) -> Any:
        found = await self.store.get(f"{kind}/{self.run.run_id}")
        return found.value if found else None


@asynccontextmanager
async def processes_of(run: RunContext) -> AsyncGenerator[FakeProcesses]:
    store = await open_store(run.store_url)
    try:
        yield FakeProcesses(store, run)
    finally:
        await store.close()


@asynccontextmanager
async def managing(
    folder: Path, fake: FakeLauncher | None = None, times: Times = FAST, **settings: Any
) -> AsyncGenerator[Serving]:
    """A manager whose loop runs."""
    settings = {"pools": {"gpu": {"device": "cuda", "devices": list(range(8))}}} | settings
    plain = ManagerSettings.model_validate(
        {"folder": folder, "address": "127.0.0.1:0", "http_address": "127.0.0.1:0"} | settings
    )
    async with serving(plain, fake or FakeLauncher(), times, wait_seconds=1.0) as served:
        loop = asyncio.create_task(served.manager.run())
        try:
            yield served
        finally:
            loop.cancel()
            with suppress(asyncio.CancelledError):
                await loop


opened: list[Store] = []
"""Stores that are closed at the end of a test."""


async def until(is_so: Callable[[], Any], seconds: float = DEADLINE) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.01)


def specification(folder: Path, **sections: Any) -> str:
    """A run's YAML, with files that are there."""
    model, data = folder / "model", folder / "train.jsonl"
    model.mkdir(exist_ok=True)
    data.touch()
    tree: dict[str, Any] = {
        "run": {"name": "demo", "steps": 20},
        "model": {"path": str(model)},
        "data": {"train": str(data)},
        "reward": {"rules": {"gsm8k": 1.0}},
    }
    for name, section in sections.items():
        tree[name] = tree.get(name, {}) | section
    return yaml.safe_dump(tree)
