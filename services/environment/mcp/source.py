"""The tools of an MCP server, for one episode.

A server that is a command is started for the episode and ends with it. What a tool reports as its error is
the policy's to read; a server that is gone, or speaks otherwise, is a fault of ours.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from aiohttp import ThreadedResolver

from services.environment.mcp.words import LastWords
from services.environment.tools.source import ToolAnswer
from trimaran.config import EnvironmentSection
from trimaran.config.environment import McpSection
from trimaran.errors import InputError, TrimaranError, UnavailableError, first_error
from trimaran.plugins.guard import GuardedResolver
from trimaran.trust.allowed import Allowed
from trimaran.types import Opening, Prompt, Tool, ToolCall

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult

OWNED = str(Path(__file__).with_name("owned.py"))
HANDSHAKE: Literal["legacy"] = "legacy"
"""`initialize`, which servers of every version answer; the newer probe makes older ones log an error."""
MAX_PAGES = 100
"""Of a server's list of tools."""
CONNECT_SECONDS = 10.0

logger = logging.getLogger(__name__)


def check_mcp(section: EnvironmentSection, allowed: Allowed) -> None:
    """Raises InputError for a command or a host that is not allowed."""
    for place, server in enumerate(section.mcp):
        if server.url:
            allowed.check_url(server.url, f"environment.mcp[{place}].url")
        else:
            allowed.check_command(server.command, f"environment.mcp[{place}].command")


def require_mcp() -> None:
    """Raises InputError where the package is not installed."""
    try:
        from mcp import Client  # noqa: F401  older versions have none
    except ImportError:
        raise InputError(
            "environment.mcp: the package mcp, 2.3 or newer, is missing where the environment runs:"
            " pip install 'trimaran[mcp]'"
        ) from None


class McpTools:
    """A `ToolSource`.

    Example:
        source = McpTools(McpSection(command=("node", "server.js")), "environment.mcp[0]", allowed)
        opening = await source.open(prompt, seed=7)
        (answer,) = await source.call([ToolCall("add", '{"a": 1, "b": 2}')])
        await source.close()
    """

    def __init__(self, server: McpSection, key: str, allowed: Allowed) -> None:
        self._server, self._allowed = server, allowed
        self._name = f"{key}: {server.url or ' '.join(server.command)}"
        self._key = key
        self._client: Client | None = None
        self._words: LastWords | None = None
        self._ending = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        loop = asyncio.get_running_loop()
        connected: asyncio.Future[Client] = loop.create_future()
        # mcp wants a connection left by the task that entered it; an episode's calls are tasks of their own.
        self._owner = asyncio.create_task(self._own(connected))
        self._client = await connected
        return Opening(prompt.messages, await self._tools(self._client))

    async def call(self, calls: Sequence[ToolCall]) -> Sequence[ToolAnswer]:
        return [await self._call(call) for call in calls]

    async def reward(self) -> float | None:
        return None

    async def close(self) -> None:
        self._ending.set()
        if self._owner:
            if self._client is None:  # it still connects
                self._owner.cancel()
            await asyncio.wait({self._owner})

    async def _own(self, connected: asyncio.Future[Client]) -> None:
        try:
            async with self._connection() as client:
                if not connected.cancelled():
                    connected.set_result(client)
                    await self._ending.wait()
        except asyncio.CancelledError:
            connected.cancel()
        except BaseException as error:
            if connected.done():
                logger.warning("%s: its connection ends with %r", self._name, error)
            else:
                connected.set_exception(await self._fault("cannot be used", error))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Client]:
        from httpx2 import AsyncClient, Timeout
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client

        async with AsyncExitStack() as stack:
            if self._server.url:
                await self._check_address(self._server.url)
                limits = Timeout(CONNECT_SECONDS, read=None)  # a step's deadline is the service's
                http = await stack.enter_async_context(AsyncClient(trust_env=False, timeout=limits))
                transport: Any = streamable_http_client(self._server.url, http_client=http)
            else:
                self._words = await stack.enter_async_context(LastWords())
                command, *words = self._server.command
                program = sys.executable if command == "python" else command
                owned = ["-S", OWNED, str(os.getpid()), program, *words]
                parameters = StdioServerParameters(command=sys.executable, args=owned)
                transport = stdio_client(parameters, self._words.file)
            client = Client(transport, mode=HANDSHAKE, cache=None)
            yield await stack.enter_async_context(client)

    async def _check_address(self, url: str) -> None:
        """Raises AddressRefusedError for a name that points where the operator has not allowed."""
        host = urlsplit(url).hostname or ""
        try:
            ipaddress.ip_address(host)
        except ValueError:
            await GuardedResolver(ThreadedResolver(), self._allowed).resolve(host)

    async def _tools(self, client: Client) -> tuple[Tool, ...]:
        found: list[Tool] = []
        cursor: str | None = None
        try:
            for _ in range(MAX_PAGES):
                listed = await client.list_tools(cursor=cursor)
                found += [
                    Tool(one.name, one.description or "", json.dumps(one.input_schema))
                    for one in listed.tools
                ]
                cursor = listed.next_cursor
                if cursor is None:
                    break
        except Exception as error:
            raise await self._fault("does not list its tools", error) from None
        return self._named(found)

    def _named(self, found: Sequence[Tool]) -> tuple[Tool, ...]:
        """Those that the configuration names. Raises InputError."""
        known = {tool.name: tool for tool in found}
        if missing := [name for name in self._server.tools if name not in known]:
            raise InputError(
                f"{self._key}.tools: {missing[0]}: the server has no such tool; it has"
                f" {', '.join(known) or 'none'}"
            )
        return tuple(known[name] for name in self._server.tools or known)

    async def _call(self, call: ToolCall) -> ToolAnswer:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        assert self._client
        try:
            result = await self._client.call_tool(call.name, json.loads(call.arguments))
        except MCPError as error:
            if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise await self._fault(f"does not answer {call.name}", error) from None
            return ToolAnswer(f"error: {error}", failed=True)
        except Exception as error:
            raise await self._fault(f"does not answer {call.name}", error) from None
        return ToolAnswer(_text(result), result.is_error)

    async def _fault(self, what: str, error: BaseException) -> TrimaranError:
        if isinstance(error, BaseExceptionGroup):
            error = first_error(error)
        if isinstance(error, TrimaranError):
            return error
        words = await self._words.text() if self._words else ""
        said = f"; its last words: {words}" if words else ""
        return UnavailableError(f"{self._name} {what}: {error or type(error).__name__}{said}")


def _text(result: CallToolResult) -> str:
    parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)
