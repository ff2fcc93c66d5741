"""Holds the run while its record cannot be written: a full disk, a quota, a store that is away.

    running ──▶ a write finds no room, or no store ──▶ held
       ▲                                                    │  tried again after growing waits
       └────────────────── it goes through ◀────────────────┘

The caller that needs the write waits in it. All need the ledger's, so nothing is issued, trained or published
while that one is held. `quota.py` says what goes on while payloads have reached their quota.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from trimaran.errors import TrimaranError, UnavailableError
from trimaran.ledger.retries import growing_wait

Result = TypeVar("Result")
Tell = Callable[[str, Mapping[str, float]], None]


def _say_nothing(text: str, values: Mapping[str, float]) -> None: ...


class HeldError(TrimaranError):
    """The run was held for `run.hold_timeout` seconds, or was ended meanwhile. It can be resumed."""


class WritePause:
    """Tries a write until it goes through.

    Example:
        pause = WritePause(config.run.hold_timeout, ended, on_hold=reporter.held, on_free=reporter.released)
        await pause.until_written(lambda: store.extend(stream, values, after))
    """

    def __init__(
        self,
        timeout: float,
        ended: asyncio.Event | None = None,
        on_hold: Tell = _say_nothing,
        on_free: Tell = _say_nothing,
        wait: Callable[[int], float] = growing_wait,
    ) -> None:
        """`ended`: set when the run is ended; a write that is held is then given up.

        `on_hold` is called once a hold, with the reason, `on_free` when it is over. `wait`: seconds before a try, by how many there were.
        """
        self._timeout, self._ended, self._wait = timeout, ended or asyncio.Event(), wait
        self._on_hold, self._on_free = on_hold, on_free
        self._num_held = 0

    @property
    def held(self) -> bool:
        """Whether any write is."""
        return self._num_held > 0

    async def until_written(
        self,
        write: Callable[[], Awaitable[Result]],
        again: Callable[[], asyncio.Event] | None = None,
    ) -> Result:
        """`again`: gives the event that will be set once another try is worth it. Such a write is not given up
        where the run ends: what it waits for may come of the run's last step.

        Raises HeldError, and what `write` raises but for UnavailableError.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout
        num_tries = 0
        try:
            while True:
                awaited = again() if again else self._ended
                try:
                    result = await write()
                    break
                except UnavailableError as error:
                    reason = str(error)
                if self._ended.is_set() and not again:
                    raise HeldError(f"the run was ended while it was held: {reason}")
                if asyncio.get_running_loop().time() > deadline:
                    raise HeldError(
                        f"the run was held for {self._timeout:g} s (run.hold_timeout): {reason};"
                        " fix that, then resume the run"
                    )
                num_tries += 1
                self._hold(reason, num_tries)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._wait(num_tries)):
                        await awaited.wait()
        finally:
            self._num_held -= num_tries > 0
        if num_tries and not self.held:
            self._on_free("the run's record can be written again", {"tries": num_tries + 1.0})
        return result

    def _hold(self, reason: str, num_tries: int) -> None:
        """Reported once, by the first of all writes that are held at a time."""
        if num_tries > 1:
            return
        self._num_held += 1
        if self._num_held == 1:
            self._on_hold(f"{reason}. The run goes on by itself then", {"tries": 1.0})
