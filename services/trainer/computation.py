"""The thread in which a trainer rank computes, and its turns on a device that it shares with the rollout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Protocol

from trimaran.errors import UnavailableError
from trimaran.run.device_turns import DeviceTurn


class Movable(Protocol):
    """What leaves the device at the end of a turn."""

    def put_away(self) -> None: ...
    def bring_back(self) -> None: ...


class Computation:
    """One thread, so that the event loop stays free. After a failure it refuses all work: the ranks no longer
    agree, and only another start helps.

    Example:
        async with computation.turn(policy):
            loss = await computation.run(step)
    """

    def __init__(self, rank: int, turn: DeviceTurn | None, turn_timeout: float) -> None:
        """`turn`: on this rank's device; None where the device is the trainer's alone."""
        self._rank = rank
        self._turn, self._turn_timeout = turn, turn_timeout
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._failure = ""
        self._failed = asyncio.Event()

    @property
    def shares_device(self) -> bool:
        """Whether the policy leaves its device between turns."""
        return self._turn is not None

    async def run(self, function: Callable[[], Any]) -> Any:
        """What `function` returns, in the thread. Raises UnavailableError after a failure."""
        if self._failure:
            raise UnavailableError(
                f"trainer rank {self._rank}: {self._failure}; resume the run from its checkpoint"
            )
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def start(self, build: Callable[[], Movable], timeout: float) -> None:
        """Builds in the rank's first turn. Raises DeadlineError where the rollout has the device for longer."""
        if self._turn:
            await self._turn.take(timeout)
        await self._end_turn(await self.run(build))

    @asynccontextmanager
    async def turn(self, policy: Movable) -> AsyncIterator[None]:
        """Inside, the policy is on its device. Raises DeadlineError where the rollout has it for longer than
        `turn_timeout`."""
        if self._turn is None:
            yield
            return
        await self._turn.take(self._turn_timeout)
        await self._move(policy.bring_back)
        try:
            yield
        finally:
            await self._end_turn(policy)

    async def _end_turn(self, policy: Movable) -> None:
        """After a failure the process ends, and that frees the device."""
        if self._turn and not self._failure:
            await self._move(policy.put_away)
            self._turn.release()

    async def _move(self, move: Callable[[], None]) -> None:
        try:
            await self.run(move)
        except Exception as error:  # a part is here and a part there
            self.fail(f"its state did not get from the device to the host or back: {error}")
            raise

    def fail(self, reason: str) -> None:
        """The first reason stands."""
        self._failure = self._failure or reason
        self._failed.set()

    async def until_failed(self) -> str:
        """Returns the reason once `fail` was called."""
        await self._failed.wait()
        return self._failure

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._turn:
            self._turn.close()
