#!/bin/sh
# Expected: a tool's function gets the text that its caller sent, where the tool's own schema says that a text fits.
# What happens: for a parameter that is a text or null, or a text or a list, the server reads the text as JSON first.
#   "null" arrives as None, '["a"]' as a list, and a text that is a JSON object is refused as being no string.
#   A parameter that is plainly `str` gets all of them as they were. So a search for `{"a": 1}` fails or not by
#   whether the parameter is optional, and the policy is told "Input should be a valid string" about a string.
# Package: mcp 2.3.0 (MCPServer). Documentation: the input_schema that the server itself lists.
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

server = MCPServer("texts")


@server.tool()
def plain(text: str) -> str:
    return repr(text)


@server.tool()
def optional(text: str | None = None) -> str:
    return repr(text)


@server.tool()
def several(text: str | list[str]) -> str:
    return repr(text)


async def answers() -> dict[tuple[str, str], str]:
    found = {}
    async with Client(server) as client:
        for tool in (await client.list_tools()).tools:
            print(tool.name, "takes", tool.input_schema["properties"]["text"])
        for name in ("plain", "optional", "several"):
            for text in ("null", '["a"]', '{"a": 1}', "7"):
                result = await client.call_tool(name, {"text": text})
                found[name, text] = "refused" if result.is_error else result.content[0].text
                print(f"{name}({text!r}) got", found[name, text])
                if result.is_error:
                    print("   ", result.content[0].text.splitlines()[2].strip())
    return found


print("mcp", version("mcp"))
found = asyncio.run(answers())
assert all(found["plain", text] == repr(text) for text in ("null", '["a"]', '{"a": 1}', "7"))
assert found["optional", "null"] == "None"
assert found["optional", '{"a": 1}'] == found["several", '{"a": 1}'] == "refused"
assert found["several", '["a"]'] == "['a']"
assert found["optional", "7"] == "'7'"
END
