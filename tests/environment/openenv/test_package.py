"""Against a server of the package openenv itself, which needs a Python environment of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess

import pytest

from services.environment.openenv.host import OpenEnvHost
from trimaran.config import EnvironmentSection
from trimaran.errors import UnavailableError
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Prompt, ToolCall

PYTHON = os.environ.get("TRIMARAN_OPENENV_PYTHON", "")
"""Of an environment with `pip install openenv==0.10.0`."""
SERVER = """
import sys, uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

class Said(Action):
    message: str

class Heard(Observation):
    echo: str = ""

class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def reset(self, seed=None, episode_id=None, **columns):
        return Heard(echo=f"{seed} {columns}")
    def step(self, action, **_):
        if action.message == "raise":
            raise ValueError("boom")
        return Heard(echo=action.message, reward=0.5, done=action.message == "end")
    @property
    def state(self):
        return State()

app = create_fastapi_app(Echo, Said, Heard, max_concurrent_envs=2)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", ws_ping_interval=0.5, ws_ping_timeout=0.5)
"""
PROMPT = Prompt("p:1", (Message("user", "Speak."),), "echo", "", {"level": "easy"})


@pytest.mark.e2e
@pytest.mark.skipif(
    not PYTHON,
    reason="openenv 0.10 wants mcp below 2, vLLM mcp from 2 on: give TRIMARAN_OPENENV_PYTHON, the python of an"
    " environment with openenv",
)
def test_episodes_on_a_server_of_the_package() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = subprocess.Popen([PYTHON, "-c", SERVER, str(port)])
    try:
        asyncio.run(_play(port))
    finally:
        server.kill()
        server.wait()


async def _play(port: int) -> None:
    section = EnvironmentSection(openenv=f"ws://127.0.0.1:{port}", timeout=1)
    allowed = Allowed.from_entries([f"http://127.0.0.1:{port}"])
    async with OpenEnvHost(section, allowed) as host:
        for left in reversed(range(300)):
            try:
                await host.actions()
                break
            except UnavailableError:
                assert left, "it does not come up"
                await asyncio.sleep(0.2)
        one, two, three = (host.create(name) for name in "123")
        opening = await one.open(PROMPT, 7)
        assert opening.messages == (Message("user", "Speak.\n\n7 {'level': 'easy'}"),)
        await asyncio.sleep(2)  # a turn of the policy, longer than the server waits for a pong
        calls = ToolCall("act", '{"message": "a"}', "1"), ToolCall("act", '{"text": "a"}', "2")
        reply = await one.step(Message("assistant", "", tool_calls=calls), "stop")
        assert [message.text for message in reply.messages] == [
            "a",
            "error: message: Field required; text: Extra inputs are not permitted",
        ]
        assert (reply.reward, reply.done, reply.num_failures) == (0.5, False, 1)
        await two.open(PROMPT, 7)
        with pytest.raises(UnavailableError, match="CAPACITY_REACHED"):
            await three.open(PROMPT, 7)
        assert (await two.step(Message("assistant", "end"), "stop")).done
        with pytest.raises(UnavailableError, match="EXECUTION_ERROR: boom"):
            await one.step(Message("assistant", "raise"), "stop")
        for environment in (one, two, three):
            await environment.close()
