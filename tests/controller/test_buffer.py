import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.controller.buffer import CALM_STEPS, Buffer
from tests.controller.virtual_time import run_virtually
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


async def test_each_wait_of_the_trainer_brings_one_batch_more_up_to_the_bound() -> None:
    buffer = Buffer(2, max_lag=2, num_steps=100)
    assert await reserved(buffer) == [0, 1]
    for step, news in enumerate([[2, 3], [6, 7], [], []]):
        take = asyncio.create_task(buffer.take())
        assert await reserved(buffer) == news
        for number in (2 * step, 2 * step + 1):
            await buffer.put(scored(number))
        await take
        await buffer.release()
        assert len(await reserved(buffer)) == 2  # in place of those that were taken


async def test_a_trainer_that_never_waits_has_one_batch_ahead() -> None:
    buffer = Buffer(2, max_lag=2, num_steps=100)
    newest, ahead = 0, []
    take = asyncio.create_task(buffer.take())  # the first batch it always waits for
    for _ in range(2 * CALM_STEPS):
        for number in await reserved(buffer):
            await buffer.put(scored(number))
            newest = number
        ahead.append(newest - (await take)[-1].group.number)
        await buffer.release()
        take = asyncio.create_task(buffer.take())
    assert (ahead[1], ahead[-1]) == (4, 2)


@given(
    groups_per_step=st.integers(1, 4),
    max_lag=st.integers(0, 3),
    latencies=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    skipped=st.sets(st.integers(0, 40), max_size=8),
    unproven=st.dictionaries(st.integers(0, 40), st.integers(1, 2), max_size=4),
    step_seconds=st.integers(0, 5),
)
def test_whatever_is_late_skipped_or_made_again_nothing_stalls_or_gets_too_old(
    groups_per_step: int,
    max_lag: int,
    latencies: list[int],
    skipped: set[int],
    unproven: dict[int, int],
    step_seconds: int,
) -> None:
    """Virtual time fails where all wait and nothing will wake any of them."""
    steps = 12
    buffer = Buffer(groups_per_step, max_lag, steps)
    issued_at: dict[int, int] = {}
    trained: list[int] = []
    live = 0

    async def roll_out() -> None:
        while True:
            number = await buffer.reserve()
            issued_at[number] = live
            await asyncio.sleep(latencies[number % len(latencies)])
            await (buffer.skip(number) if number in skipped else buffer.put(scored(number)))

    async def train() -> None:
        nonlocal live
        for step in range(steps):
            while True:
                batch = await buffer.take()
                again = {s.group.number for s in batch if unproven.get(s.group.number, 0)}
                if not again:
                    break
                unproven.update({number: unproven[number] - 1 for number in again})
                await buffer.give_back(batch, again)
            numbers = [s.group.number for s in batch]
            assert len(numbers) == groups_per_step
            assert max(step - issued_at[number] for number in numbers) <= max_lag
            trained.extend(numbers)
            await asyncio.sleep(step_seconds)
            live = step + 1
            await buffer.release()

    async def both() -> None:
        workers = [asyncio.create_task(roll_out()) for _ in range((max_lag + 1) * groups_per_step)]
        await train()
        for worker in workers:
            worker.cancel()

    run_virtually(both())
    last = max(trained)
    assert trained == [number for number in range(last + 1) if number not in skipped]


@pytest.mark.parametrize("max_lag", [0, 2])
async def test_a_resumed_line_issues_its_open_groups_first(max_lag: int) -> None:
    buffer = Buffer(2, max_lag, 100, next_number=13, reissued=(12, 9), reused=(scored(10),))
    take = asyncio.create_task(buffer.take())
    first = await reserved(buffer)
    assert first[:2] == [9, 12]
    assert first[2:] == [13][:max_lag]
    await buffer.put(scored(9))
    assert [s.group.number for s in await take] == [9, 10]
