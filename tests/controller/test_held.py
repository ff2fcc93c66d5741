"""Whole runs whose disk is full: held, and reported as held, until there is room or an operator ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.controller.test_serve import STEPS, Pool, control
from tests.tiny_disk import disk, empty
from trimaran.clients import ControllerClient
from trimaran.ledger.write_pause import HeldError
from trimaran.run.context import RunContext
from trimaran.run.events import is_last, watch_events
from trimaran.run.runs import Goal, RunEvent, RunState
from trimaran.store import open_store

__all__ = ["disk"]
OnHold = Callable[[ControllerClient], Awaitable[None]]


def run(tmp_path: Path, disk: Path, on_hold: OnHold, hold_timeout: float = 60) -> list[RunEvent]:
    """To its end, with its payloads on `disk`. `on_hold` is called at each event of that kind."""
    (tmp_path / "run").mkdir(exist_ok=True)
    events: list[RunEvent] = []

    async def look(address: str) -> None:
        store = await open_store(RunContext.in_folder(tmp_path / "run").store_url)
        try:
            async with ControllerClient(address, "run") as client:
                async for event in watch_events(store, "run", 0, poll=0.02):
                    events.append(event)
                    if event.kind == "held":
                        await on_hold(client)
                    if is_last(event):
                        return
        finally:
            await store.close()

    async def body() -> None:
        pool = Pool()
        looking = asyncio.create_task(look(pool.controller))
        async with pool.serving() as endpoints:
            try:
                await control(tmp_path, endpoints, hold_timeout=hold_timeout, payloads=str(disk))
            finally:
                await asyncio.wait_for(looking, 60)

    try:
        asyncio.run(asyncio.wait_for(body(), 60))
    except HeldError:
        assert events[-1].run.state is RunState.FAILED
    return events


def test_it_goes_on_by_itself_once_there_is_room(tmp_path: Path, disk: Path) -> None:
    async def make_room(client: ControllerClient) -> None:
        empty(disk)

    events = run(tmp_path, disk, make_room)
    kinds = [event.kind.value for event in events]
    assert (kinds.count("held"), kinds.count("released")) == (1, 1)
    held, released = events[kinds.index("held")], events[kinds.index("released")]
    assert "MiB left" in held.run.held and "make room there" in held.run.held
    assert released.run.held == ""
    assert (events[-1].run.state, events[-1].run.step) == (RunState.SUCCEEDED, STEPS)
    assert kinds.index("held") < kinds.index("step"), "it trained without its record"


def test_a_held_run_can_be_cancelled(tmp_path: Path, disk: Path) -> None:
    async def cancel(client: ControllerClient) -> None:
        await client.set_goal(Goal.CANCEL)

    events = run(tmp_path, disk, cancel)
    assert (events[-1].run.state, events[-1].run.step) == (RunState.CANCELLED, 0)


def test_it_fails_after_its_time_and_says_why(tmp_path: Path, disk: Path) -> None:
    async def wait(client: ControllerClient) -> None: ...

    events = run(tmp_path, disk, wait, hold_timeout=0.5)
    assert "held for 0.5 s (run.hold_timeout)" in events[-1].run.error
    assert "make room there" in events[-1].run.error
