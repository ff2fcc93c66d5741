"""An environment that does as its test says."""

from __future__ import annotations

import asyncio
from typing import Self

from trimaran.errors import TransferError
from trimaran.types import Message, Opening, Prompt, Reply, Tool

TOOL = Tool("look", "Look around.", '{"type": "object", "properties": {}}')


class World:
    """Answers with what it was sent; "hang" and "fail" are orders, "end" ends the episode."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.turn = name, log, 0

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        self.log.append(f"open {self.name}")
        return Opening((*prompt.messages, Message("user", str(seed))), (TOOL,))

    async def step(self, message: Message, finish_reason: str) -> Reply:
        self.log.append(f"step {message.text}")
        self.turn += 1
        if message.text == "hang":
            await asyncio.sleep(60)
        if message.text == "fail":
            raise TransferError("it broke")
        answers = (
            *(
                Message("tool", call.arguments, (), (), call.call_id, call.name)
                for call in message.tool_calls
            ),
            Message("user", f"{self.turn}: {message.text}"),
        )
        return Reply(answers, reward=1.5, done=message.text == "end", num_calls=len(answers) - 1)

    async def close(self) -> None:
        self.log.append(f"close {self.name}")


class Worlds:
    """Their host."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def create(self, episode: str) -> World:
        return World(episode, self.log)
