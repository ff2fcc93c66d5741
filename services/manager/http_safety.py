"""What is refused before anything of a request is looked at.

A manager without tokens listens on loopback, where a browser reaches it as well. So that no web page
steers it, a request must name a host that is the manager's (a page's own name may lead to loopback),
and must not come from a page of another origin.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.manager.http_problems import Problem, answer

MAX_BODY_BYTES = 4 << 20
"""Of a run's specification."""


class Safety:
    """An ASGI middleware."""

    def __init__(
        self, app: ASGIApp, hosts: frozenset[str], max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        """`hosts`: the names under which the manager may be asked; empty: any."""
        self._app, self._hosts, self._max_body_bytes = app, hosts, max_body_bytes

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
        name = urlsplit(f"//{host}").hostname or ""
        if self._hosts and name not in self._hosts:
            return _forbidden(f"host: {host!r} is not the manager's name")
        if origin is not None and urlsplit(origin).netloc != host:
            return _forbidden(f"origin: a page of {origin[:200]!r} may not ask the manager")
        return None

    async def _read(self, receive: Receive) -> bytes | Problem:
        """The whole body, or why it is refused."""
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


def _forbidden(detail: str) -> Problem:
    return Problem(title="PERMISSION_DENIED", status=403, detail=detail, error="forbidden")


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read, and then what follows it: the end of the connection."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again
