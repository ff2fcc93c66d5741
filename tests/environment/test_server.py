"""The service over gRPC, with a run's own code in real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.environment.server import serve
from tests import configs
from tests.first_epoch import draw_epoch
from tests.trimaran.telemetry.test_exposition import values
from trimaran.clients import EnvironmentClient, MetricsClient
from trimaran.config import RunConfig
from trimaran.errors import InputError, InternalError
from trimaran.run.context import RunContext
from trimaran.run.network import LOOPBACK
from trimaran.trust.allowed import ALLOW_VARIABLE
from trimaran.types import Caller, Message, Prompt, ToolCall
from trimaran.wire import rpc

SECONDS = 60.0
CODE = Path(__file__).parent / "user_code.py"


def configure(**environment: Any) -> RunConfig:
    endpoints = {"environment": [LOOPBACK.free_address()]}
    return configs.configure(environment=environment, endpoints=endpoints)


@asynccontextmanager
async def serving(config: RunConfig, run_folder: Path) -> AsyncIterator[EnvironmentClient]:
    [address] = config.endpoints.environment
    await draw_epoch(run_folder, "run")
    service = asyncio.create_task(serve(config, RunContext.in_folder(run_folder)))
    up = asyncio.create_task(rpc.wait_until_serving(address, SECONDS))
    await asyncio.wait({service, up}, return_when=asyncio.FIRST_COMPLETED)
    if service.done():
        up.cancel()
        service.result()
    async with EnvironmentClient(address, Caller("run", 1)) as client:
        yield client
    service.cancel()
    with pytest.raises(asyncio.CancelledError):
        await service


@pytest.fixture(autouse=True)
def allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_VARIABLE, f"{CODE}:*")


def prompt(text: str = "What is 1 + 2?", task: str = "sums", **extras: str) -> Prompt:
    return Prompt("train.jsonl:1", (Message("user", text),), task, "3", extras)


def call(name: str, arguments: str) -> Message:
    return Message("assistant", "", tool_calls=(ToolCall(name, arguments, "call_0"),))


async def test_tools_are_called_until_a_message_calls_none(tmp_path: Path) -> None:
    config = configure(tools=[f"{CODE}:add"], python=True)
    async with serving(config, tmp_path) as client:
        opening = await client.open("1.0", prompt(), 7, SECONDS)
        assert [tool.name for tool in opening.tools] == ["add", "python"]
        reply = await client.step("1.0", 1, call("add", '{"a": 1, "b": 2}'), "stop", SECONDS)
        assert reply.messages == (Message("tool", "3", call_id="call_0", name="add"),)
        code = call("python", '{"code": "print(6 * 7)\\nx"}')
        reply = await client.step("1.0", 2, code, "stop", SECONDS)
        assert reply.messages[0].text.startswith("42\nTraceback")
        assert "child.py" not in reply.messages[0].text
        assert (reply.num_calls, reply.num_failures, reply.reward) == (1, 1, None)
        assert (await client.step("1.0", 3, Message("assistant", "3"), "stop", SECONDS)).done
        async with MetricsClient(client.address) as process:
            known = values(await process.get_metrics())
        assert known["trimaran_environment_episodes",] == 1
        assert known["trimaran_environment_processes", "busy"] == 1
        await client.close_episode("1.0")


async def test_a_class_of_ours_plays(tmp_path: Path) -> None:
    config = configure(factory=f"{CODE}:Guess", options={"most": 8})
    async with serving(config, tmp_path) as client:
        opening = await client.open("1.0", prompt(), 6, SECONDS)
        assert opening.messages == (Message("system", "Guess."), Message("user", "1 to 8"))
        for turn, (text, reported, reward, done) in enumerate(
            [("5", "no", 0.0, False), ("?", "a hint", None, False), ("7", "yes", 1.0, True)], 1
        ):
            reply = await client.step("1.0", turn, Message("assistant", text), "stop", SECONDS)
            assert (reply.messages[0].text, reply.reward, reply.done) == (reported, reward, done)
        as_it_is = await client.open("2.0", prompt(task="as it is"), 6, SECONDS)
        assert as_it_is.messages == prompt().messages
        with pytest.raises(InternalError, match="ValueError: no such game"):
            await client.open("3.0", prompt(task="broken"), 6, SECONDS)
        with pytest.raises(InternalError, match="TypeError: step gave a str"):
            await client.step("2.0", 1, Message("assistant", "what"), "stop", SECONDS)


async def test_a_class_of_trl_plays_and_its_reward_is_the_episode_s(tmp_path: Path) -> None:
    async with serving(configure(factory=f"{CODE}:Counter"), tmp_path) as client:
        opening = await client.open("1.0", prompt("Go.", level="2"), 6, SECONDS)
        assert [message.text for message in opening.messages] == ["Go. Count to 3."]
        assert [tool.name for tool in opening.tools] == ["step"]
        by = call("step", '{"by": 3}')
        rewards = [
            (await client.step("1.0", turn, message, "stop", SECONDS)).reward
            for turn, message in enumerate((by, by, Message("assistant", "8")), 1)
        ]
        assert rewards == pytest.approx([0.5, 0.3, 0.0])


@pytest.mark.parametrize(
    ("environment", "reported"),
    [
        ({"installed": "nothing"}, r"environment\.installed: .* is unknown"),
        ({"tools": [f"{CODE}:add"]}, r"environment\.tools\[0\]: .* --allow"),
    ],
)
async def test_what_is_not_allowed_or_not_there_is_refused(
    environment: dict[str, Any], reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW_VARIABLE, "")
    with pytest.raises(InputError, match=reported):
        async with serving(configure(**environment), tmp_path):
            pass
