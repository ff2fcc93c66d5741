"""Work on a disk that may hang, on threads of its own and with a deadline."""

from __future__ import annotations

import asyncio
import threading

import pytest

from trimaran.errors import UnavailableError
from trimaran.host.call_thread import Disk

LONG = 30.0


async def test_work_that_hangs_is_given_up_and_its_end_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    goes_on = threading.Event()

    def fail() -> None:
        assert goes_on.wait(LONG)
        raise OSError(5, "Input/output error")

    disk = Disk("checkpoints", 0.05, "trainer.save_timeout")
    expected = r"its disk has not answered for 0.05 s \(trainer.save_timeout\)"
    with pytest.raises(UnavailableError, match=f"the save: {expected}"):
        await disk.do(fail, "the save")
    with pytest.raises(UnavailableError, match=f"another: {expected}"):
        await disk.do(lambda: None, "another")  # at once
    goes_on.set()
    async with asyncio.timeout(LONG):
        while disk.hangs:
            await asyncio.sleep(0.01)
    assert await disk.do(lambda: 3) == 3
    disk.close(LONG)
    assert "a call that had been given up has returned: [Errno 5] Input/output error" in caplog.text


def test_an_error_of_the_work_rises_as_it_is() -> None:
    def fail() -> None:
        raise TimeoutError("the work's own")

    with pytest.raises(TimeoutError, match="the work's own"):
        asyncio.run(Disk("folder", LONG).do(fail))


async def test_several_threads_work_at_a_time() -> None:
    disk, meeting = Disk("prompts", LONG, num_threads=2), threading.Barrier(2)
    await asyncio.gather(*(disk.do(lambda: meeting.wait(LONG)) for _ in range(2)))
    disk.close(LONG)
