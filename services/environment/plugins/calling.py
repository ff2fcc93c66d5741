"""Calls an environment plugin. Whatever keeps it from answering is a fault of ours."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel

from services.environment.plugins.contract import (
    CONTRACT,
    CloseAnswer,
    OpenAnswer,
    StepAnswer,
)
from services.environment.plugins.forms import opening_of, reply_of, row_form
from trimaran.config import EnvironmentSection, PluginSection
from trimaran.errors import InputError, UnavailableError
from trimaran.plugins.caller import PluginCaller
from trimaran.plugins.exchange import open_session
from trimaran.plugins.forms import CallError, encode, parse
from trimaran.plugins.guard import GuardedResolver
from trimaran.plugins.messages import message_form
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Opening, Prompt, Reply

MAX_ANSWER_BYTES = 16 << 20
CLOSE_SECONDS = 5.0
"""Less than what an environment has for its end."""

Answer = TypeVar("Answer", bound=BaseModel)


def check_plugin(section: EnvironmentSection, allowed: Allowed) -> None:
    """Raises InputError for a host that is not allowed, and for what only calls of rewards have."""
    assert section.plugin
    allowed.check_url(section.plugin.url, "environment.plugin.url")
    for key in ("protocol", "batch_size", "max_concurrency"):
        if getattr(section.plugin, key) != PluginSection.model_fields[key].default:
            raise InputError(f"environment.plugin.{key}: is for rewards alone; leave it out")


class PluginHost:
    """Example:
    section = EnvironmentSection(plugin=PluginSection(url="http://127.0.0.1:8800"))
    async with PluginHost(section, Allowed.from_entries(["http://127.0.0.1:8800"])) as host:
        opening = await host.create("17.1.0").open(prompt, seed=7)
    """

    def __init__(self, section: EnvironmentSection, allowed: Allowed) -> None:
        """Raises InputError, as `check_plugin`."""
        check_plugin(section, allowed)
        assert section.plugin
        # An episode has one call under way at a time.
        self._plugin = section.plugin.model_copy(update={"max_concurrency": section.max_episodes})
        self._options, self._allowed = section.options, allowed
        self._stack = AsyncExitStack()
        self._caller: PluginCaller | None = None

    async def __aenter__(self) -> PluginHost:
        """Raises InputError for a token or certificates that cannot be used."""
        async with AsyncExitStack() as stack:
            resolver = GuardedResolver(aiohttp.ThreadedResolver(), self._allowed)
            session = await stack.enter_async_context(open_session(resolver))
            self._caller = PluginCaller(self._plugin, session)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def create(self, episode: str) -> PluginEnvironment:
        assert self._caller
        return PluginEnvironment(self._caller, episode, self._options, self._plugin.timeout)


class PluginEnvironment:
    def __init__(
        self, caller: PluginCaller, episode: str, options: Mapping[str, Any], timeout: float
    ) -> None:
        self._caller, self._options, self._timeout = caller, options, timeout
        # Other runs may have episodes of this name there.
        self._session = f"{episode[:150]}.{uuid.uuid4().hex}"
        self._turn = 0

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        content = {"row": row_form(prompt), "seed": seed, "options": dict(self._options)}
        return opening_of(await self._ask("open", content, OpenAnswer), prompt)

    async def step(self, message: Message, finish_reason: str) -> Reply:
        self._turn += 1
        content = {
            "turn": self._turn,
            "message": message_form(message),
            "finish_reason": finish_reason,
        }
        return reply_of(await self._ask("step", content, StepAnswer))

    async def close(self) -> None:
        await self._ask("close", {}, CloseAnswer, min(CLOSE_SECONDS, self._timeout))

    async def _ask(
        self, what: str, content: Mapping[str, Any], model: type[Answer], seconds: float = 0
    ) -> Answer:
        """Raises UnavailableError."""
        head = {"contract": CONTRACT, "session": self._session}
        deadline = asyncio.get_running_loop().time() + (seconds or self._timeout)
        try:
            answer = await self._caller.call(
                deadline, "POST", f"/v1/{what}", MAX_ANSWER_BYTES, encode({**head, **content})
            )
            return parse(model, answer)
        except CallError as error:
            words = self._caller.said(error)
            raise UnavailableError(f"environment.plugin {self._caller.url}: {words}") from None
