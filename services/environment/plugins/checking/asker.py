"""Asks an environment plugin, as the checks need it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from services.environment.plugins.contract import (
    CONTRACT,
    CloseAnswer,
    OpenAnswer,
    PluginRow,
    StepAnswer,
)
from trimaran.plugins.checking import SAME_TOKEN, Asker, PluginAccess, PluginReply, new_key
from trimaran.plugins.messages import PluginMessage

DEFAULT_ROW = PluginRow(
    messages=[PluginMessage(role="user", content="What is 3 + 4?")], answer="7", prompt_id="check"
)
MESSAGE = {"role": "assistant", "content": "7"}


class EpisodeAsker(Asker):
    """One environment plugin."""

    def __init__(
        self, session: aiohttp.ClientSession, access: PluginAccess, row: PluginRow
    ) -> None:
        super().__init__(session, access)
        self._row = row.model_dump(exclude_defaults=True)

    async def post(self, what: str, session: str, **fields: Any) -> PluginReply:
        """`fields` beside those of every request; a `token` is shown instead of the configured one."""
        token = fields.pop("token", SAME_TOKEN)
        return await self.ask("POST", f"/v1/{what}", body_of(session, **fields), token)

    async def open(self, session: str) -> OpenAnswer:
        return (await self.post("open", session, row=self._row, seed=7)).read(OpenAnswer)

    async def step(self, session: str, turn: int) -> StepAnswer:
        return (await self.post("step", session, turn=turn, message=MESSAGE)).read(StepAnswer)

    async def close(self, session: str) -> None:
        (await self.post("close", session)).read(CloseAnswer)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[str]:
        """One that is open, and is closed in the end."""
        name = new_key()
        await self.open(name)
        yield name
        await self.close(name)


def body_of(session: str, **fields: Any) -> bytes:
    return json.dumps({"contract": CONTRACT, "session": session} | fields).encode()
