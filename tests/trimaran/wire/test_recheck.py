from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from trimaran.errors import UnauthenticatedError
from trimaran.wire.recheck import while_allowed


async def numbers() -> AsyncGenerator[int]:
    for number in range(100):
        yield number
        await asyncio.sleep(0.01)


def read(identify: Callable[[], object]) -> list[int]:
    async def body() -> list[int]:
        return [number async for number in while_allowed(numbers(), identify, seconds=0.05)]

    return asyncio.run(body())


def test_a_client_that_stays_who_it_was_reads_to_the_end() -> None:
    assert read(lambda: ("anna", "team-a")) == list(range(100))


def test_a_client_that_becomes_another_owners_reads_no_more() -> None:
    owners = iter(["team-a", "team-a", "team-b"])
    with pytest.raises(UnauthenticatedError, match="owner or role has changed"):
        read(lambda: ("anna", next(owners)))
