"""A slow or greedy watcher slows nobody."""

import asyncio

import pytest

from services.manager.watchers import Watchers, paced
from trimaran.errors import LimitError


def test_a_watcher_gets_the_past_at_once_and_then_so_many_a_second():
    """A machine under load can only be slower."""

    async def items():
        for number in range(30):
            yield number

    async def run():
        began = asyncio.get_running_loop().time()
        got = [number async for number in paced(items(), per_second=50.0, burst=10)]
        return got, asyncio.get_running_loop().time() - began

    got, seconds = asyncio.run(run())
    assert got == list(range(30))
    assert seconds >= 20 / 50 * 0.95


def test_nothing_is_asked_for_ahead_of_a_slow_watcher_and_the_source_is_closed():
    asked, closed = [], []

    async def items():
        try:
            for number in range(1000):
                asked.append(number)
                yield number
        finally:
            closed.append(True)

    async def run():
        events = paced(items())
        assert [await anext(events) for _ in range(3)] == [0, 1, 2]
        await events.aclose()

    asyncio.run(run())
    assert asked == [0, 1, 2]
    assert closed == [True]


def test_a_client_has_so_many_watchers_at_a_time():
    watchers = Watchers(2)
    with watchers.one_more("anna"), watchers.one_more("anna"):
        third = watchers.one_more("anna")
        with pytest.raises(LimitError, match="watchers of anna: 2 at a time"), third:
            pass
        with watchers.one_more("bob"):
            pass
    with watchers.one_more("anna"):
        pass
