"""Episodes on an OpenEnv server, and what its failures become."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from services.environment.episodes import OpenEpisodes
from services.environment.openenv.actions import ACT
from services.environment.openenv.host import OpenEnvHost
from tests.environment.openenv.fake_server import (
    ADD,
    CALLS,
    Answers,
    Frame,
    OpenEnvServer,
    calls,
    echo,
    observation,
)
from trimaran.config import EnvironmentSection
from trimaran.errors import DeadlineError, InputError, UnavailableError
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Prompt, Tool, ToolCall

PROMPT = Prompt("p:1", (Message("user", "Guess."),), "guess", "7", {"level": "easy"})


@asynccontextmanager
async def host_of(server: OpenEnvServer, **keys: Any) -> AsyncIterator[OpenEnvHost]:
    section = EnvironmentSection(openenv=server.url, **{"timeout": 5, **keys})
    allowed = Allowed.from_entries([f"http://127.0.0.1:{server.port}"])
    async with OpenEnvHost(section, allowed) as host:
        yield host


def said(text: str = "", *calls: ToolCall) -> Message:
    return Message("assistant", text, tool_calls=calls)


async def test_texts_and_calls_become_actions() -> None:
    async with (
        OpenEnvServer() as server,
        host_of(server, options={"reset": {"size": 3}}) as host,
    ):
        environment = host.create("17.1.0")
        opening = await environment.open(PROMPT, 2**63 + 5)
        assert server.received[0]["data"] == {
            "level": "easy",
            "size": 3,
            "seed": 5,
            "episode_id": "17.1.0",
        }
        (message,) = opening.messages
        assert message.text.startswith('Guess.\n\n{"echoed_message": "ready ')
        assert opening.tools[0].name == ACT
        assert list(json.loads(opening.tools[0].parameters)["properties"]) == ["message"]

        reply = await environment.step(said("hello"), "stop")
        text = '{"echoed_message": "hello", "message_length": 5}'
        assert reply.messages == (Message("user", text),)
        assert (reply.reward, reply.done, reply.num_calls) == (0.5, False, 0)

        good, ends = (ToolCall(ACT, f'{{"message": "{w}"}}', w) for w in ("aa", "end"))
        wrong = ToolCall(ACT, '{"text": "x"}', "w")
        others = ToolCall("look", "{}", "o"), ToolCall(ACT, "{", "j"), ToolCall(ACT, "[]", "l")
        reply = await environment.step(said("", good, wrong, *others, ends, good), "stop")
        texts = [message.text for message in reply.messages]
        assert texts[1] == "error: message: Field required; text: Extra inputs are not permitted"
        assert "'look'" in texts[2] and "no JSON:" in texts[3] and "no JSON object" in texts[4]
        assert [m.call_id for m in reply.messages] == ["aa", "w", "o", "j", "l", "end"]
        assert {m.role for m in reply.messages} == {"tool"}
        assert (reply.reward, reply.done, reply.num_failures) == (0.5, True, 4)
        await environment.close()
        assert server.received[-1] == {"type": "close"}
        assert server.open == []


@pytest.mark.parametrize(
    ("schema", "options", "field"),
    [
        ({"properties": {"code": {}, "message": {}}, "required": ["code"]}, {}, "message"),
        ({"properties": {"code": {}, "message": {}}}, {"message": "code"}, "code"),
    ],
)
async def test_which_field_a_text_becomes(schema: Frame, options: Frame, field: str) -> None:
    async def answers(frame: Frame, _: Any) -> Frame:
        return observation(stdout="so", metadata={"x": 1})

    async with (
        OpenEnvServer(answers, schema) as server,
        host_of(server, options=options) as host,
    ):
        environment = host.create("e")
        opening = await environment.open(PROMPT, 7)
        assert opening.messages[0].text == "Guess.\n\nso", "a single text stands as it is"
        await environment.step(said("x"), "stop")
        assert server.received[-1]["data"] == {field: "x"}


async def test_a_server_of_tools_is_asked_for_them() -> None:
    async with OpenEnvServer(calls, CALLS) as server, host_of(server) as host:
        environment = host.create("e")
        opening = await environment.open(PROMPT, 7)
        assert opening.messages == PROMPT.messages, "nothing to read in an empty observation"
        schema = json.dumps(ADD["input_schema"])
        assert opening.tools == (Tool("add", "Add two numbers.", schema),)
        two = ToolCall("add", '{"a": 1, "b": 2}', "1"), ToolCall("sub", "{}", "2")
        reply = await environment.step(said("", *two), "stop")
        assert [m.text for m in reply.messages] == ["3", "error: Unknown tool: 'sub'"]
        assert (reply.num_calls, reply.num_failures, reply.done) == (2, 1, False)
        assert (await environment.step(said("3"), "stop")).done, "an answer without a call"


async def test_a_full_server_is_waited_for() -> None:
    async with OpenEnvServer(room=1) as server, host_of(server) as host:
        first, second = host.create("1"), host.create("2")
        await first.open(PROMPT, 7)
        waiting = asyncio.create_task(second.open(PROMPT, 7))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await first.close()
        await waiting
        await second.close()
    async with OpenEnvServer(room=0) as server, host_of(server, timeout=0.3) as host:
        with pytest.raises(UnavailableError, match="raise max_concurrent_envs there"):
            await host.create("1").open(PROMPT, 7)


async def dies(frame: Frame, socket: web.WebSocketResponse) -> Frame | None:
    if frame["type"] == "step":
        await socket.close(code=1011)
        return None
    return await echo(frame, socket)


def speaks(answer: str) -> Answers:
    async def answers(frame: Frame, socket: web.WebSocketResponse) -> Frame | None:
        if frame["type"] != "step":
            return await echo(frame, socket)
        await socket.send_str(answer)

    return answers


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (dies, "ended the connection while it was asked to step"),
        (speaks("certainly"), "not as its contract says"),
        (speaks('{"type": "state", "data": {}}'), "with 'state' instead of an observation"),
        (speaks("x" * (17 << 20)), "with what is no text"),
        (echo, "EXECUTION_ERROR: boom"),
    ],
    ids=["dies", "no JSON", "state", "flood", "raises"],
)
async def test_a_server_that_fails_is_a_fault_of_ours(answers: Answers, words: str) -> None:
    async with OpenEnvServer(answers) as server, host_of(server) as host:
        environment = host.create("e")
        await environment.open(PROMPT, 7)
        with pytest.raises(UnavailableError, match=words):
            await environment.step(said("raise"), "stop")
        await environment.close()
        await asyncio.sleep(0.1)
        assert server.open == []


async def test_a_server_that_hangs_is_left_at_the_deadline() -> None:
    async def hangs(frame: Frame, socket: web.WebSocketResponse) -> Frame | None:
        return await echo(frame, socket) if frame["type"] == "reset" else None

    async with OpenEnvServer(hangs) as server, host_of(server, timeout=0.3) as host:
        async with OpenEpisodes(host, host.section) as episodes:
            await episodes.open("e", PROMPT, 7, 1)
            with pytest.raises(DeadlineError, match="has not answered for 0.3 s"):
                await episodes.step("e", 1, said("x"), "stop", 1)
        assert server.open == [], "its session is closed"


async def test_a_server_that_is_away() -> None:
    async with OpenEnvServer() as server:
        pass
    async with host_of(server) as host:
        environment = host.create("e")
        with pytest.raises(UnavailableError, match="/schema: cannot be reached"):
            await environment.open(PROMPT, 7)
        await environment.close()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"openenv": "ws://other:8000"}, "environment.openenv: http://other:8000 is not among"),
        ({"options": {"size": 3}}, "environment.options.size: an OpenEnv server has message"),
        ({"options": {"message": 3}}, "environment.options.message: give the name of a field"),
    ],
)
def test_what_is_refused_before_an_episode(keys: Frame, words: str) -> None:
    section = EnvironmentSection.model_validate({"openenv": "ws://127.0.0.1:8000", **keys})
    with pytest.raises(InputError, match=words):
        OpenEnvHost(section, Allowed.from_entries(["http://127.0.0.1:8000"]))
