#!/bin/sh
# Expected: a call with an argument that the tool does not have is an error that the caller is told.
# What happens: the server drops that argument and runs the tool with its default. The schema that it lists has no
#   additionalProperties, so a validator lets it pass, too. A policy that writes max_results instead of limit hears
#   of no mistake, and neither does a count of failed calls.
#   A result that is an empty list, or None where the type allows it, has no content at all; one of three texts has
#   three; the same data as a `dict` is one JSON text.
# Package: mcp 2.3.0 (MCPServer).
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet mcp==2.3.0
"$dir/venv/bin/python" - <<'END'
import asyncio
from importlib.metadata import version

from mcp import Client
from mcp.server import MCPServer

server = MCPServer("finder")


@server.tool()
def find(query: str, limit: int = 2) -> list[str]:
    return [f"{query} {number}" for number in range(limit)]


@server.tool()
def count(query: str) -> int | None:
    return None


@server.tool()
def whole(query: str) -> dict:
    return {"result": [query]}


async def call(name: str, **arguments) -> list[str]:
    async with Client(server) as client:
        result = await client.call_tool(name, arguments)
    texts = [block.text for block in result.content]
    print(f"{name}({arguments}): error {result.is_error}, texts {texts}, structured {result.structured_content}")
    assert not result.is_error
    return texts


async def schema() -> dict:
    async with Client(server) as client:
        return (await client.list_tools()).tools[0].input_schema


print("mcp", version("mcp"))
listed = asyncio.run(schema())
print("find takes", listed)
assert "additionalProperties" not in listed
assert asyncio.run(call("find", query="cat", max_results=1)) == ["cat 0", "cat 1"]
assert asyncio.run(call("find", query="cat", limit=3)) == ["cat 0", "cat 1", "cat 2"]
assert asyncio.run(call("find", query="cat", limit=0)) == []
assert asyncio.run(call("count", query="cat")) == []
assert len(asyncio.run(call("whole", query="cat"))) == 1
END
