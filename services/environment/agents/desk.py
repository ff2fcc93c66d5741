"""Where a program's requests wait for the policy's turns, one after the other.

    ask ──▶ waits ──▶ next ──▶ the policy's turn ──▶ answer ──▶ ask returns

A client that gives up and asks the same again, as the `openai` package does, gets the turn that it
asked for first: the policy speaks once.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field

from services.environment.agents.sequences import Request
from trimaran.errors import InputError, LimitError, StateError
from trimaran.types import Message, Usage

MAX_WAITING = 64
"""Requests of one program at a time."""


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """A turn of the policy. Example: TurnAnswer(Message("assistant", "7"), "stop", turn=1, usage=Usage(9, 1))"""

    message: Message
    finish_reason: str
    turn: int
    usage: Usage


@dataclass(eq=False, slots=True)
class Asked:
    """A request, and who waits for its answer."""

    request: Request
    answer: asyncio.Future[TurnAnswer] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    is_waited_for: bool = True


class Desk:
    """Of one episode.

    Example:
        desk = Desk(key="secret")
        asking = asyncio.create_task(desk.ask(request))  # the program
        asked = await desk.next()                        # the environment
        desk.answer(asked, TurnAnswer(Message("assistant", "7"), "stop", 1, usage))
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.is_over = False
        self.is_done = False
        """By the program's own word."""
        self._waiting: deque[Asked] = deque()
        self._given_up: list[Asked] = []
        """Turns of the policy that their client has not waited for."""
        self._current: Asked | None = None
        self._reward: float | None = None
        self._changed = asyncio.Event()

    async def ask(self, request: Request) -> TurnAnswer:
        """Cancel it where the client has gone. Raises StateError for an episode that is over."""
        self._check_open()
        asked = self._given_up_before(request)
        if asked is None:
            if len(self._waiting) >= MAX_WAITING:
                raise LimitError(f"{MAX_WAITING} requests wait already; ask again later")
            asked = Asked(request)
            self._waiting.append(asked)
            self._changed.set()
        try:
            return await asyncio.shield(asked.answer)
        except asyncio.CancelledError:
            asked.is_waited_for = False
            if asked in self._waiting:
                self._waiting.remove(asked)
            else:
                self._given_up.append(asked)
            raise

    async def next(self) -> Asked | None:
        """The request whose turn it is; None once the program has said that it is done."""
        while not self._waiting:
            if self.is_done:
                return None
            self._changed.clear()
            await self._changed.wait()
        self._current = self._waiting.popleft()
        return self._current

    def answer(self, answer: TurnAnswer) -> None:
        """To the request that `next` gave last."""
        assert self._current, "nothing was asked"
        if not self._current.answer.done():
            self._current.answer.set_result(answer)

    def report(self, reward: float | None, is_done: bool) -> None:
        """By the program. Rewards add up until they are taken."""
        self._check_open()
        if reward is not None:
            if not math.isfinite(reward):
                raise InputError("reward: not a finite number")
            self._reward = (self._reward or 0.0) + reward
        self.is_done = self.is_done or is_done
        self._changed.set()

    def take_reward(self) -> float | None:
        reward, self._reward = self._reward, None
        return reward

    def end(self) -> None:
        """Who still waits hears that the episode is over."""
        self.is_over = True
        for asked in (*self._waiting, *filter(None, [self._current])):
            if not asked.answer.done():
                asked.answer.set_exception(_over())
                asked.answer.exception()  # nothing may be there to look at it

    def _check_open(self) -> None:
        if self.is_over or self.is_done:
            raise _over()

    def _given_up_before(self, request: Request) -> Asked | None:
        for asked in self._given_up:
            if asked.request == request:
                self._given_up.remove(asked)
                asked.is_waited_for = True
                return asked
        return None


def _over() -> StateError:
    return StateError("the episode is over; the policy has no further turn in it")
