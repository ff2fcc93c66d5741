"""The server that speaks the contract."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from services.environment.plugins.contract import CONTRACT
from tests.environment.plugins.served import TOKEN, served
from tests.environment.worlds import Worlds

Ask = Callable[..., Coroutine[Any, Any, tuple[int, Any]]]
SAID = {"role": "assistant", "content": "x"}


@asynccontextmanager
async def asked(worlds: Worlds, **keys: Any) -> AsyncIterator[Ask]:
    async with served(worlds, **keys) as url, aiohttp.ClientSession() as session:

        async def ask(what: str, name: str = "s", **fields: Any) -> tuple[int, Any]:
            body = {"contract": CONTRACT, "session": name, **fields}
            async with session.post(f"{url}/v1/{what}", json=body) as response:
                return response.status, json.loads(await response.read())

        yield ask


async def test_what_a_failure_of_the_environment_is_over_http() -> None:
    """500 ends the session: a status that is sent again would find no session and hide the cause."""
    worlds = Worlds()
    async with asked(worlds, timeout=0.3) as ask:
        for word, cause in (("fail", "it broke"), ("hang", "has not answered for 0.3 s")):
            assert (await ask("open", row={}))[0] == 200
            status, problem = await ask("step", turn=1, message={**SAID, "content": word})
            assert status == 500
            assert cause in problem["detail"]
            assert (await ask("step", turn=1, message=SAID))[0] == 404
    assert worlds.log.count("close s") == 2


async def test_no_room() -> None:
    async with asked(Worlds(), max_episodes=1) as ask:
        assert (await ask("open", "one", row={}))[0] == 200
        waiting = asyncio.create_task(ask("open", "two", row={}))
        await asyncio.sleep(0.2)
        assert not waiting.done(), "it waits for room"
        assert (await ask("close", "one"))[0] == 200
        assert (await waiting)[0] == 200


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"row": {}, "options": {"size": 4}}, "--option key=value"),
        ({"row": {"messages": [{"role": "user"}]}}, "content"),
        ({"row": {}, "seed": -1}, "seed"),
        ({"row": {}, "sed": 1}, "sed"),
    ],
)
async def test_openings_that_are_refused(fields: dict[str, Any], words: str) -> None:
    async with asked(Worlds()) as ask:
        status, problem = await ask("open", **fields)
        assert status == 422
        assert words in problem["detail"]


async def test_the_token_is_asked_for_first() -> None:
    worlds = Worlds()
    async with asked(worlds, token=TOKEN) as ask:
        assert (await ask("open", row={}))[0] == 401
    assert worlds.log == []
