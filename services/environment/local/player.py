"""A class of Trimaran's own form in a process of the pool, which answers messages itself."""

from __future__ import annotations

from typing import Any

from services.environment.local.rows import row_of
from services.environment.workers.lines import (
    decode_message,
    decode_reply,
    decode_tool,
    encode_message,
)
from services.environment.workers.pool import EnvironmentPool
from services.environment.workers.process import EnvironmentProcess
from trimaran.errors import UnavailableError
from trimaran.types import Message, Opening, Prompt, Reply


class PlayerEnvironment:
    """An `Environment`: one episode's process."""

    def __init__(self, pool: EnvironmentPool) -> None:
        self._pool = pool
        self._worker: EnvironmentProcess | None = None

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        self._worker = await self._pool.take()
        answer = await self._ask({"do": "open", "row": row_of(prompt, seed)}, "opening")
        if answer is None:
            return Opening(prompt.messages, prompt.tools)
        try:
            messages, tools = answer
            return Opening(tuple(map(decode_message, messages)), tuple(map(decode_tool, tools)))
        except (ValueError, KeyError, TypeError) as error:
            raise _garbage(error) from None

    async def step(self, message: Message, finish_reason: str) -> Reply:
        answer = await self._ask({"do": "step", "message": encode_message(message)}, "reply")
        try:
            return decode_reply(answer)
        except (ValueError, KeyError, TypeError) as error:
            raise _garbage(error) from None

    async def close(self) -> None:
        if worker := self._worker:
            self._worker = None
            await self._pool.give_back(worker)

    async def _ask(self, request: dict[str, Any], key: str) -> Any:
        assert self._worker
        return (await self._worker.ask(request))[key]


def _garbage(error: Exception) -> UnavailableError:
    return UnavailableError(f"the environment's process answered garbage: {error}")
