import asyncio

import pytest

from services.controller.buffer import Buffer
from trimaran.types import Group, Message, Prompt, ScoredGroup

PROMPT = Prompt("p", (Message("user", "?"),), "t", "1")


def scored(number: int) -> ScoredGroup:
    return ScoredGroup(Group(number, 1, PROMPT, (1,), ()), ())


async def reserved(buffer: Buffer) -> list[int]:
    """Every number that the buffer gives out without anybody else acting."""
    numbers = []
    while True:
        task = asyncio.create_task(buffer.reserve())
        for _ in range(5):
            await asyncio.sleep(0)
        if not task.done():
            task.cancel()
            return numbers
        numbers.append(task.result())


def test_a_busy_trainer_has_one_batch_ahead_a_waiting_one_up_to_the_bound() -> None:
    async def body() -> None:
        buffer = Buffer(2, max_lag=3, num_steps=100)
        assert await reserved(buffer) == [0, 1]
        take = asyncio.create_task(buffer.take())
        assert await reserved(buffer) == [2, 3, 4, 5, 6, 7]
        for number in range(8):
            await buffer.put(scored(number))
        assert [s.group.number for s in await take] == [0, 1]
        await buffer.release()
        assert await reserved(buffer) == []  # a full batch already waits
        for _ in range(3):
            await buffer.take()
        await buffer.release()
        assert await reserved(buffer) == [8, 9]

    asyncio.run(body())


def test_release_frees_what_was_taken_and_nothing_before() -> None:
    async def body() -> None:
        buffer = Buffer(2, max_lag=0, num_steps=100)
        assert await reserved(buffer) == [0, 1]
        await buffer.put(scored(1))
        await buffer.put(scored(0))
        assert [s.group.number for s in await buffer.take()] == [0, 1]
        assert await reserved(buffer) == []
        await buffer.release()
        assert await reserved(buffer) == [2, 3]

    asyncio.run(body())


def test_a_skipped_number_holds_no_place_in_the_line() -> None:
    async def body() -> None:
        buffer = Buffer(2, max_lag=0, num_steps=1)
        assert await reserved(buffer) == [0, 1]
        await buffer.skip(0)
        assert await reserved(buffer) == [2]
        await buffer.put(scored(2))
        await buffer.put(scored(1))
        assert [s.group.number for s in await buffer.take()] == [1, 2]
        await buffer.release()
        assert await reserved(buffer) == []

    asyncio.run(body())


@pytest.mark.parametrize("max_lag", [0, 2])
def test_a_resumed_line_issues_its_open_groups_first(max_lag: int) -> None:
    async def body() -> None:
        buffer = Buffer(2, max_lag, 100, next_number=13, reissued=(12, 9), reused=(scored(10),))
        take = asyncio.create_task(buffer.take())
        first = await reserved(buffer)
        assert first[:2] == [9, 12]
        assert first[2:] == [13, 14, 15][: 3 * max_lag]
        await buffer.put(scored(9))
        assert [s.group.number for s in await take] == [9, 10]

    asyncio.run(body())


@pytest.mark.parametrize("max_lag", [0, 2])
def test_a_batch_that_is_given_back_keeps_its_slots_and_its_place(max_lag: int) -> None:
    async def body() -> None:
        buffer = Buffer(2, max_lag, num_steps=2)
        assert await reserved(buffer) == [0, 1]
        await buffer.put(scored(0))
        await buffer.put(scored(1))
        batch = await buffer.take()
        ahead = await reserved(buffer)
        assert ahead == [2, 3][:max_lag]
        await buffer.give_back(batch, {1})
        take = asyncio.create_task(buffer.take())
        # Only what is reissued goes out: a group beyond it would find no slot.
        assert await reserved(buffer) == [1]
        for number in ahead:
            await buffer.put(scored(number))
        assert not take.done()
        await buffer.put(scored(1))
        assert [s.group.number for s in await take] == [0, 1]
        await buffer.release()
        assert await reserved(buffer) == [2, 3][len(ahead) :]

    asyncio.run(body())


def test_a_prompt_that_is_skipped_as_it_is_made_again_gives_its_place_to_the_next() -> None:
    async def body() -> None:
        buffer = Buffer(2, max_lag=0, num_steps=1)
        assert await reserved(buffer) == [0, 1]
        await buffer.put(scored(0))
        await buffer.put(scored(1))
        await buffer.give_back(await buffer.take(), {0, 1})
        assert await reserved(buffer) == [0, 1]
        await buffer.skip(0)
        assert await reserved(buffer) == [2]
        await buffer.put(scored(1))
        await buffer.put(scored(2))
        assert [s.group.number for s in await buffer.take()] == [1, 2]

    asyncio.run(body())
