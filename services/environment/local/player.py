"""A class of Trimaran's own form in a process of the pool, which answers messages itself."""

from __future__ import annotations

from typing import Any

from services.environment.local.episode_process import EpisodeProcess
from services.environment.workers.lines import (
    decode_message,
    decode_reply,
    decode_tool,
    encode_message,
)
from trimaran.errors import UnavailableError
from trimaran.types import Message, Opening, Prompt, Reply


class PlayerEnvironment(EpisodeProcess):
    """An `Environment`."""

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        answer: Any = (await self.begin(prompt, seed))["opening"]
        if answer is None:
            return Opening(prompt.messages, prompt.tools)
        try:
            messages, tools = answer
            return Opening(tuple(map(decode_message, messages)), tuple(map(decode_tool, tools)))
        except (ValueError, KeyError, TypeError) as error:
            raise _garbage(error) from None

    async def step(self, message: Message, finish_reason: str) -> Reply:
        answer = (await self.ask({"do": "step", "message": encode_message(message)}))["reply"]
        try:
            return decode_reply(answer)
        except (ValueError, KeyError, TypeError) as error:
            raise _garbage(error) from None


def _garbage(error: Exception) -> UnavailableError:
    return UnavailableError(f"the environment's process answered garbage: {error}")
