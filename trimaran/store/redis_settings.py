"""Whether a Redis server keeps what it acknowledges."""

from __future__ import annotations

from typing import Any

from redis import exceptions

REQUIRED = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
}
"""Setting -> the value with which nothing that was acknowledged is lost when the server is killed."""


async def find_weakness(client: Any) -> str:
    """The settings that are otherwise, in words; empty where there is none."""
    try:
        found = await client.config_get(*REQUIRED)
    except exceptions.ResponseError as error:
        return f"its settings cannot be read ({error})"
    return ", ".join(
        f"{name} is {found.get(name)}, not {value}"
        for name, value in REQUIRED.items()
        if found.get(name) != value
    )
