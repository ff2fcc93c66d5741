"""Pages over fake runs, asked as a browser asks: with cookies, an origin, and htmx's header for parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from services.manager.http.app import make_app
from services.manager.permissions import check_role
from tests.clients.fake_runs import FakeRuns
from trimaran.errors import UnauthenticatedError
from trimaran.telemetry.exposition import Exposition
from trimaran.trust.access import ClientIdentity, Role

ORIGIN = "http://127.0.0.1:7980"
PARTIAL = {"HX-Request": "true"}
TOKENS = {role.value: ClientIdentity(f"anna-{role}", "team-a", role) for role in Role}
"""Each role's name is a token."""

Body = Callable[[httpx.AsyncClient, FakeRuns], Awaitable[None]]


def identify(method: str, token: str) -> ClientIdentity:
    if token not in TOKENS:
        raise UnauthenticatedError("there is no such token here")
    check_role(TOKENS[token], method)
    return TOKENS[token]


def browse(body: Body, token: str = "operator", is_read_only: bool = False) -> None:
    """Runs `body` with a signed-in client ("" as token: one that is not), and fake runs with one run."""

    async def run() -> None:
        runs = FakeRuns()
        runs.add("run", owner="team-a")
        app = make_app(runs, identify, Exposition())
        app.state.is_read_only = is_read_only
        transport = httpx.ASGITransport(app)
        cookies = {"trimaran_7980": token} if token else {}
        async with httpx.AsyncClient(
            transport=transport, base_url=ORIGIN, headers={"Origin": ORIGIN}, cookies=cookies
        ) as client:
            await body(client, runs)

    asyncio.run(asyncio.wait_for(run(), 60))
