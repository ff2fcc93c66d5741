"""Where tools come from: functions in a worker, the sandbox, a server elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trimaran.types import Opening, Prompt, ToolCall


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a call gave. Example: ToolAnswer("12")"""

    text: str
    failed: bool = False
    """The policy reads in `text` why."""


class ToolSource(Protocol):
    """The tools of one episode that one place has; several may stand in one environment.

    Its methods raise TrimaranError for a fault of ours; what fails in a tool is an Answer.

    Example:
        class Clock(ToolSource):
            async def open(self, prompt: Prompt, seed: int) -> Opening:
                tool = Tool("clock", "The time.", '{"type": "object", "properties": {}}')
                return Opening(prompt.messages, (tool,))

            async def call(self, calls: Sequence[ToolCall]) -> Sequence[Answer]:
                return [ToolAnswer(time.ctime())] * len(calls)

            async def reward(self) -> float | None:
                return None

            async def close(self) -> None: ...
    """

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        """What the episode begins with, from the messages that the sources before it gave, and the tools of
        this one."""
        ...

    async def call(self, calls: Sequence[ToolCall]) -> Sequence[ToolAnswer]:
        """One a call, in order. Each is of one of its tools, with the text of a JSON object."""
        ...

    async def reward(self) -> float | None:
        """What the episode is worth so far; None where this source gives no reward."""
        ...

    async def close(self) -> None:
        """As `Environment.close`."""
        ...
