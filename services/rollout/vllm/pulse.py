"""Whether vLLM's core and its workers still take calls.

A core that was stopped, or that waits for ever for one of its workers, is alive: nothing of vLLM ends.
A busy core differs: it takes calls between two steps, however long its
prompts are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from trimaran.errors import InternalError

CHECK_SECONDS = 1.0
"""Between two calls of `Pulse.check`."""
ASK_SECONDS = 5.0
"""At most, between an answer and the next question."""


class Pulse:
    """Asks again and again, one question at a time, and counts how long the answer takes.

    Seconds are counted as checks: in a process that stood still itself, everything is late for a
    moment.

    Example:
        pulse = Pulse(workers.answer, timeout=60.0)
        pulse.check()  # once a second; raises InternalError
    """

    def __init__(
        self,
        ask: Callable[[Callable[[], None]], Coroutine[Any, Any, None]],
        timeout: float,
    ) -> None:
        """`ask` calls what it is given when the question is on its way; until then it waits for its
        turn, which is no silence. `timeout`: seconds for an answer."""
        self._ask = ask
        self._timeout = timeout
        self._pause = min(ASK_SECONDS, timeout / 4)
        self._question: asyncio.Task[None] | None = None
        self._is_asked = False
        self._seconds = self._pause
        """Since the question was asked, or since the last one was answered."""

    def check(self) -> None:
        """Raises InternalError when the answer is overdue."""
        if self._question is not None and not self._question.done():
            self._seconds += CHECK_SECONDS if self._is_asked else 0.0
            if self._seconds > self._timeout:
                raise InternalError(
                    f"the vllm engine is frozen: its core or a worker has taken no call for"
                    f" {self._seconds:.0f} s (frozen_timeout is {self._timeout:g} s)"
                )
        elif self._question is not None:
            self._note_answer(self._question)
        elif self._seconds >= self._pause:
            self._is_asked, self._seconds = False, 0.0
            self._question = asyncio.create_task(self._ask(self._note_asked))
        else:
            self._seconds += CHECK_SECONDS

    def close(self) -> None:
        if self._question is not None:
            self._question.cancel()

    def _note_asked(self) -> None:
        self._is_asked = True

    def _note_answer(self, question: asyncio.Task[None]) -> None:
        """An error is an answer, too: a core that is dead is found by who looks for that."""
        if not question.cancelled():
            question.exception()
        self._question, self._seconds = None, 0.0
