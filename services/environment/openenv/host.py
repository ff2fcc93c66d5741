"""Episodes on an OpenEnv server: each has a session of its own there."""

from __future__ import annotations

import asyncio
import random
import re
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from pydantic import JsonValue

from services.environment.openenv.actions import (
    LIST_TOOLS,
    Actions,
    OpenEnvAction,
    OpenEnvOptions,
    text_of,
    tool_answer,
    tools_of,
)
from services.environment.openenv.session import Observed, RefusedError, Session
from services.environment.workers.lines import shortened
from trimaran.config import EnvironmentSection
from trimaran.errors import UnavailableError
from trimaran.plugins.exchange import PluginRequest, exchange, open_session
from trimaran.plugins.forms import CallError, Lenient, parse
from trimaran.plugins.guard import GuardedResolver
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Opening, Prompt, Reply

MAX_SCHEMA_BYTES = 1 << 20
SEED_BITS = 31
"""Generators of random numbers take seeds of 32 bits, and some of them no larger ones."""
FULL = "CAPACITY_REACHED"
INVALID = "VALIDATION_ERROR"


class _Schema(Lenient):
    action: dict[str, JsonValue]


def check_openenv(section: EnvironmentSection, allowed: Allowed) -> None:
    """Raises InputError for a host that is not allowed, and for other options."""
    assert section.openenv
    allowed.check_url(section.openenv, "environment.openenv")
    OpenEnvOptions.read(section.options)


class OpenEnvHost:
    """Example:
    section = EnvironmentSection(openenv="ws://127.0.0.1:8000")
    async with OpenEnvHost(section, Allowed.from_entries(["http://127.0.0.1:8000"])) as host:
        opening = await host.create("17.1.0").open(prompt, seed=7)
    """

    def __init__(self, section: EnvironmentSection, allowed: Allowed) -> None:
        """Raises InputError, as `check_openenv`."""
        check_openenv(section, allowed)
        assert section.openenv
        self.section, self.options = section, OpenEnvOptions.read(section.options)
        self.url = re.sub(r"(/ws)?/?$", "", section.openenv)
        self._allowed, self._stack = allowed, AsyncExitStack()
        self._client: aiohttp.ClientSession | None = None
        self._actions: Actions | None = None

    async def __aenter__(self) -> OpenEnvHost:
        resolver = GuardedResolver(aiohttp.ThreadedResolver(), self._allowed)
        self._client = await self._stack.enter_async_context(open_session(resolver))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def create(self, episode: str) -> OpenEnvEnvironment:
        return OpenEnvEnvironment(self, episode)

    async def actions(self) -> Actions:
        """What the server's actions are; it is asked once. Raises UnavailableError."""
        if self._actions is None:
            assert self._client
            url = re.sub("^ws", "http", self.url) + "/schema"
            try:
                answer = await exchange(self._client, PluginRequest("GET", url, MAX_SCHEMA_BYTES))
                self._actions = Actions(parse(_Schema, answer).action, self.options)
            except CallError as error:
                raise UnavailableError(f"environment.openenv {url}: {error}") from None
        return self._actions

    async def connect(self) -> Session:
        assert self._client
        return await Session.connect(self._client, f"{self.url}/ws")


class OpenEnvEnvironment:
    """One session."""

    def __init__(self, host: OpenEnvHost, episode: str) -> None:
        self._host, self._episode = host, episode
        self._session: Session | None = None

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        actions = await self._host.actions()
        data = {
            **prompt.extras,
            **(self._host.options.reset or {}),
            "seed": seed % (1 << SEED_BITS),
            "episode_id": self._episode,
        }
        observed = await self._reset(data)
        if actions.are_calls:
            tools = tools_of((await self._asked("step", LIST_TOOLS)).observation)
        else:
            tools = (actions.tool,)
        text = self._shown(text_of(observed.observation, self._host.options))
        return Opening(_with_text(prompt.messages, text), tools)

    async def step(self, message: Message, finish_reason: str) -> Reply:
        actions = (await self._host.actions()).of(message)
        messages: list[Message] = []
        rewards: list[float] = []
        num_failures, done = 0, not actions
        for action in actions:
            text, failed, observed = await self._act(action)
            messages.append(_answer(action, self._shown(text)))
            num_failures += failed and action.call is not None
            if observed is not None:
                done = observed.done
                rewards += [] if observed.reward is None else [float(observed.reward)]
            if done:
                break
        return Reply(
            messages=tuple(messages),
            reward=sum(rewards) if rewards else None,
            done=done,
            num_calls=sum(action.call is not None for action in actions),
            num_failures=num_failures,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _act(self, action: OpenEnvAction) -> tuple[str, bool, Observed | None]:
        """Text for the policy, whether it is of a failure, and what the server observed."""
        if action.fault:
            return action.fault, True, None
        assert self._session
        try:
            observed = await self._session.ask("step", action.data)
        except RefusedError as error:
            if error.code != INVALID:
                raise self._fault("step", error) from None
            return f"error: {error}", True, None
        if (called := tool_answer(observed.observation)) is not None:
            return *called, observed
        return text_of(observed.observation, self._host.options), False, observed

    async def _reset(self, data: dict[str, Any]) -> Observed:
        """In a session of its own. Waits for room within environment.timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._host.section.timeout
        while True:
            self._session = await self._host.connect()
            try:
                return await self._session.ask("reset", data)
            except RefusedError as error:
                if error.code != FULL or loop.time() > deadline:
                    raise self._fault("reset", error) from None
            await self._session.close()
            await asyncio.sleep(random.uniform(0.1, 0.5))

    async def _asked(self, what: str, data: dict[str, Any]) -> Observed:
        assert self._session
        try:
            return await self._session.ask(what, data)
        except RefusedError as error:
            raise self._fault(what, error) from None

    def _fault(self, what: str, error: RefusedError) -> UnavailableError:
        remedy = ""
        if error.code == FULL:
            remedy = "; raise max_concurrent_envs there, or lower environment.max_episodes"
        return UnavailableError(
            f"environment.openenv {self._host.url}: {what} fails with {error.code}:"
            f" {str(error)[:600]}{remedy}"
        )

    def _shown(self, text: str) -> str:
        return shortened(text, self._host.section.max_message_chars)


def _answer(action: OpenEnvAction, text: str) -> Message:
    if action.call is None:
        return Message("user", text)
    return Message("tool", text, call_id=action.call.call_id, name=action.call.name)


def _with_text(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """Behind the row's last message where that is the user's: templates want the roles in turn."""
    if not text:
        return messages
    if messages and messages[-1].role == "user":
        last = messages[-1]
        joined = Message("user", f"{last.text}\n\n{text}")
        return (*messages[:-1], joined)
    return (*messages, Message("user", text))
