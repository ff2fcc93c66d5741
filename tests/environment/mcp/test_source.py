"""Tools of an MCP server: what the policy reads, what is a fault, and what is left behind."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.environment.episodes import OpenEpisodes
from services.environment.loading.load import LoadSpec
from services.environment.local.host import LocalHost
from services.environment.mcp.source import McpTools, check_mcp
from services.environment.tools.source import ToolAnswer
from tests.environment.mcp.plain_server import TOOLS
from tests.launch.services import is_alive, wait_until
from tests.trimaran.plugins.live import serving
from trimaran.config import EnvironmentSection
from trimaran.config.environment import McpSection
from trimaran.errors import DeadlineError, InputError, InternalError, UnavailableError
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Prompt, ToolCall

PROMPT = Prompt("p:1", (Message("user", "Add."),), "add", "3")
PLAIN = ("python", "-S", str(Path(__file__).with_name("plain_server.py")))
ADD = ToolCall("add", '{"a": 1, "b": 2}', "1")


def tools_of(*words: str, **keys: Any) -> McpTools:
    return McpTools(McpSection(command=(*PLAIN, *words), **keys), "environment.mcp[0]", Allowed())


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(name, '{"a": 1, "b": 2}') for name in names]


async def test_what_a_tool_answers_is_the_policy_s_to_read() -> None:
    source = tools_of()
    opening = await source.open(PROMPT, 7)
    assert opening.messages == PROMPT.messages
    assert [tool.name for tool in opening.tools] == TOOLS
    assert opening.tools[0].description == "The first."
    assert json.loads(opening.tools[0].parameters)["properties"]["a"] == {"type": "integer"}
    assert await source.call(calls("add", "fail", "protocol", "parts")) == [
        ToolAnswer("3"),
        ToolAnswer("no luck", failed=True),
        ToolAnswer("error: arguments do not fit", failed=True),
        ToolAnswer("one\n[image]\ntwo"),
    ]
    await source.close()


async def test_only_the_tools_that_are_named() -> None:
    source = tools_of(tools=("parts", "add"))
    assert [t.name for t in (await source.open(PROMPT, 7)).tools] == ["parts", "add"]
    await source.close()
    source = tools_of(tools=("sub",))
    with pytest.raises(InputError, match=r"environment\.mcp\[0\]\.tools: sub: .* it has add,"):
        await source.open(PROMPT, 7)
    await source.close()


async def test_a_server_that_dies_in_a_call_is_a_fault_with_its_last_words() -> None:
    source = tools_of()
    await source.open(PROMPT, 7)
    with pytest.raises(UnavailableError, match="does not answer die: .* the disk is full"):
        await source.call(calls("die"))
    await source.close()


def wait_gone(file: Path) -> None:
    """Those whose ids it has."""
    pids = [int(pid) for pid in file.read_text().split()]
    wait_until(lambda: not any(map(is_alive, pids)), "the end of the server")


@pytest.mark.parametrize("name", ["hang", "garbage", "die"])
async def test_an_episode_that_ends_badly_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    """Neither the server nor what it has started."""
    file = tmp_path / "pids"
    section = EnvironmentSection(mcp=(McpSection(command=(*PLAIN, str(file))),), timeout=1)
    host = LocalHost(section, LoadSpec((), "", {}, ""), Allowed())
    async with host, OpenEpisodes(host, section) as episodes:
        await episodes.open("e", PROMPT, 7, 1)
        message = Message("assistant", "", tool_calls=(ToolCall(name, "{}"),))
        with pytest.raises((DeadlineError, InternalError)):
            await episodes.step("e", 1, message, "stop", 1)
    wait_gone(file)


def test_a_server_ends_with_the_service_however_that_ends(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    source = f"""
import asyncio, os, signal
from tests.environment.mcp.test_source import PROMPT, tools_of
async def main():
    await tools_of({str(file)!r}).open(PROMPT, 7)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", source], timeout=60, check=False)
    assert done.returncode == -9
    wait_gone(file)


async def test_a_server_over_http() -> None:
    from mcp.server import MCPServer

    server = MCPServer("two")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    def bad() -> str:
        raise ValueError("no luck")

    async with serving(server.streamable_http_app()) as url:
        section = McpSection(url=f"{url}/mcp")
        source = McpTools(section, "environment.mcp[0]", Allowed())
        opening = await source.open(PROMPT, 7)
        assert [(t.name, t.description) for t in opening.tools] == [
            ("add", "Add two numbers."),
            ("bad", ""),
        ]
        good, wrong, failed = await source.call(
            [ADD, ToolCall("add", '{"a": "x"}'), ToolCall("bad", "{}")]
        )
        assert good == ToolAnswer("3")
        assert wrong.failed and "valid integer" in wrong.text
        assert failed.failed
        await source.close()
    source = McpTools(section, "environment.mcp[0]", Allowed())
    with pytest.raises(UnavailableError, match=r"environment\.mcp\[0\]: http://127.* cannot"):
        await source.open(PROMPT, 7)
    await source.close()


async def test_an_installation_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is started."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    section = EnvironmentSection(mcp=(McpSection(command=PLAIN),))

    with pytest.raises(InputError, match=r"pip install 'trimaran\[mcp\]'"):
        async with LocalHost(section, LoadSpec((), "", {}, ""), Allowed()):
            pass


async def test_a_name_that_points_inside_is_refused() -> None:
    name = socket.gethostname()
    source = McpTools(McpSection(url=f"http://{name}:9/mcp"), "environment.mcp[0]", Allowed())
    with pytest.raises(UnavailableError, match="not a public address"):
        await source.open(PROMPT, 7)
    await source.close()


def test_only_what_the_operator_allowed() -> None:
    allowed = Allowed.from_entries(["command node server.js", "https://tools.example"])
    check_mcp(EnvironmentSection(mcp=(McpSection(command=("node", "server.js")),)), allowed)
    check_mcp(EnvironmentSection(mcp=(McpSection(url="https://tools.example/mcp"),)), allowed)
    for server in (McpSection(command=("node",)), McpSection(url="https://other.example/mcp")):
        with pytest.raises(InputError, match=r"environment\.mcp\[0\]\.(command|url): "):
            check_mcp(EnvironmentSection(mcp=(server,)), allowed)
