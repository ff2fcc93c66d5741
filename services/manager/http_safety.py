"""What is refused before anything of a request is looked at.

A manager without tokens listens on loopback, where a browser reaches it as well. So that no web page
steers it, a request must name a host that is the manager's (a page's own name may lead to loopback),
and must not come from a page of another origin.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.manager.http_problems import Problem, answer

MAX_BODY_BYTES = 4 << 20
"""Of a run's specification."""
BODY_SECONDS = 60.0


class Safety:
    """An ASGI middleware."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: frozenset[str],
        max_body_bytes: int = MAX_BODY_BYTES,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        """`hosts`: the names under which the manager may be asked; empty: any. `body_seconds`: for a
        request to arrive whole, before anybody knows who sends it."""
        self._app, self._hosts = app, hosts
        self._max_body_bytes, self._body_seconds = max_body_bytes, body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refuse(Headers(scope=scope)) or await self._read(receive)
        if isinstance(refusal, Problem):
            await answer(refusal)(scope, receive, send)
            return
        await self._app(scope, _replay(refusal, receive), send)

    def _refuse(self, headers: Headers) -> Problem | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        name = _hostname(host)
        if name is None or (self._hosts and name not in self._hosts):
            return _forbidden(f"host: {host[:200]!r} is not the manager's name")
        if origin is not None and origin.partition("://")[2] != host:
            return _forbidden(f"origin: a page of {origin[:200]!r} may not ask the manager")
        return None

    async def _read(self, receive: Receive) -> bytes | Problem:
        """The whole body, or why it is refused."""
        try:
            async with asyncio.timeout(self._body_seconds):
                return await self._read_all(receive)
        except TimeoutError:
            detail = f"the body: did not arrive within {self._body_seconds:g} s"
            return Problem(title="DEADLINE_EXCEEDED", status=408, detail=f"{detail}; send it again")

    async def _read_all(self, receive: Receive) -> bytes | Problem:
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            chunk = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(chunk)
            if size > self._max_body_bytes:
                limit = f"{self._max_body_bytes >> 20} MiB"
                return Problem(
                    title="RESOURCE_EXHAUSTED", status=413, detail=f"the body: more than {limit}"
                )
            chunks.append(chunk)
        return b"".join(chunks)


def _hostname(host: str) -> str | None:
    """None for what can be no host, such as half a bracket."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return None


def _forbidden(detail: str) -> Problem:
    return Problem(title="PERMISSION_DENIED", status=403, detail=detail, error="forbidden")


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read, and then what follows it: the end of the connection."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again
