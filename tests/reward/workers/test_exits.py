"""How processes of the pool ended."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import wait

import pytest

from services.reward.workers.exits import RememberingContext

pytestmark = pytest.mark.e2e  # a real process


def test_two_threads_that_ask_at_once_are_told_the_same_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One thread of pebble and ours do."""
    read_signed: Callable[[int], int] = forkserver.read_signed
    process = RememberingContext().Process(target=os._exit, args=(9,))
    process.start()
    wait([process.sentinel])

    def read_slowly(descriptor: int) -> int:
        time.sleep(0.2)
        return read_signed(descriptor)

    monkeypatch.setattr(forkserver, "read_signed", read_slowly)
    told: list[int | None] = []
    threads = [threading.Thread(target=lambda: told.append(process.exitcode)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (told, process.exitcode) == ([9, 9], 9)
