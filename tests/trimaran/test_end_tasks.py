"""Tasks are ended, whatever becomes of a cancellation."""

import asyncio

import pytest

from trimaran import end_tasks as module
from trimaran.end_tasks import end_tasks


def test_a_task_that_drops_a_cancellation_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    dropped: list[str] = []

    async def drops() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                dropped.append("one")
                if len(dropped) > 2:
                    raise

    async def fails() -> None:
        raise ValueError("lost")

    async def body() -> None:
        tasks = [asyncio.create_task(drops()), asyncio.create_task(fails())]
        await asyncio.sleep(0)
        await asyncio.wait_for(end_tasks(tasks), 30)
        assert [task.cancelled() for task in tasks] == [True, False]

    asyncio.run(body())
    assert len(dropped) == 3
