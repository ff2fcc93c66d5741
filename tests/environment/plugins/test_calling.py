"""Episodes in an environment plugin: what travels, and what its failures become."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from services.environment.plugins.calling import PluginHost
from services.environment.plugins.contract import CONTRACT
from tests.environment.plugins.served import TOKEN, served
from tests.environment.worlds import TOOL, Worlds
from tests.trimaran.plugins import hostile
from tests.trimaran.plugins.hostile import Received, Reply, Server, answer
from trimaran.config import EnvironmentSection
from trimaran.errors import InputError, UnavailableError
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Prompt, ToolCall

PROMPT = Prompt("p:1", (Message("user", "Guess."),), "guess", "7", {"level": "easy"})
VARIABLE = "TRIMARAN_WORLD_TOKEN"


@asynccontextmanager
async def host_of(url: str, options: Any = None, **keys: Any) -> AsyncIterator[PluginHost]:
    section = EnvironmentSection.model_validate(
        {"plugin": {"url": url, "timeout": 10, **keys}, "options": options or {}}
    )
    async with PluginHost(section, Allowed.from_entries([url])) as host:
        yield host


async def test_an_episode_is_as_it_would_be_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    worlds = Worlds()
    look = ToolCall("look", '{"at": 1}', "c1")
    said = Message("assistant", "so", tool_calls=(look,), reasoning="why not")
    async with (
        served(worlds, TOKEN) as url,
        host_of(url, {"size": 3}, token_variable=VARIABLE) as host,
    ):
        environment = host.create("17.1.0")
        opening = await environment.open(PROMPT, 2**64 - 1)
        assert opening.messages == (*PROMPT.messages, Message("user", str(2**64 - 1)))
        assert opening.tools == (TOOL,)
        reply = await environment.step(said, "stop")
        assert reply.messages == (
            Message("tool", '{"at": 1}', call_id="c1", name="look"),
            Message("user", "1: so"),
        )
        assert (reply.reward, reply.done, reply.num_calls) == (1.5, False, 1)
        assert (await environment.step(Message("assistant", "end"), "length")).done
        await environment.close()
    assert [line.partition(" ")[0] for line in worlds.log] == ["open", "step", "step", "close"]
    assert "17.1.0." in worlds.log[0], "its name there says whose it is"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (answer(500, b'{"detail": "the maze fell down"}'), "answers 500: the maze fell down"),
        (answer(200, b'{"contract": "trimaran.environment/2"}'), "contract: Input should be"),
        (answer(200, b'{"contract": "%s", "reward": NaN}' % CONTRACT.encode()), "reward"),
        (answer(200, b'{"contract": "%s", "reward": "1"}' % CONTRACT.encode()), "reward"),
        (hostile.never, "no answer within 0."),
    ],
)
async def test_a_plugin_that_fails_is_a_fault_of_ours(reply: Reply, words: str) -> None:
    async with Server(reply) as server, host_of(server.url, timeout=0.5, attempts=1) as host:
        with pytest.raises(UnavailableError, match="environment.plugin http://127") as raised:
            await host.create("e").step(Message("assistant", "x"), "stop")
    assert words in str(raised.value)


async def test_a_step_that_lost_its_answer_is_asked_again_and_done_once() -> None:
    """The plugin hears the turn, works, and its first answer does not arrive."""
    worlds = Worlds()
    async with served(worlds) as url:

        async def lost(request: Received, writer: asyncio.StreamWriter) -> None:
            await passed_on(url, request)
            hostile.abort(writer)

        async def reported(request: Received, writer: asyncio.StreamWriter) -> None:
            await answer(200, await passed_on(url, request))(request, writer)

        async with Server(reported, lost, reported) as between, host_of(between.url) as host:
            environment = host.create("e")
            await environment.open(PROMPT, 7)
            reply = await environment.step(Message("assistant", "x"), "stop")
    assert reply.messages == (Message("user", "1: x"),)
    _, first, again = between.posts
    assert (first.json, first.path) == (again.json, "/v1/step")
    assert worlds.log.count("step x") == 1


async def passed_on(url: str, request: Received) -> bytes:
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(url + request.path, data=request.body) as response,
    ):
        return await response.read()


async def test_what_is_refused_before_an_episode() -> None:
    def host(entry: str, **keys: Any) -> PluginHost:
        section = {"plugin": {"url": "http://world.example:8800", **keys}}
        allowed = Allowed.from_entries([entry])
        return PluginHost(EnvironmentSection.model_validate(section), allowed)

    with pytest.raises(InputError, match=r"environment\.plugin\.url: http://world.example:8800"):
        host("http://world.example:8801")
    for of_rewards in ({"protocol": "sandbox_fusion"}, {"max_concurrency": 2}):
        with pytest.raises(InputError, match=r"environment\.plugin\.\w+: is for rewards alone"):
            host("http://world.example:8800", **of_rewards)
    with pytest.raises(InputError, match=f"{VARIABLE} is not set"):
        async with host("http://world.example:8800", token_variable=VARIABLE):
            pass
