"""What is refused before anything of a request is looked at.

A manager without tokens listens on loopback, where a browser reaches it as well. So that no web page
steers it, a request must name a host that is the manager's (a page's own name may lead to loopback),
and must not come from a page of another origin.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from trimaran.wire.http_problems import Problem, answer, read_body, replay

MAX_BODY_BYTES = 4 << 20
"""The size of a run's specification."""
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
        body = self._refuse(Headers(scope=scope)) or await read_body(
            receive, self._max_body_bytes, self._body_seconds
        )
        if isinstance(body, Problem):
            await answer(body)(scope, receive, send)
            return
        await self._app(scope, replay(body, receive), send)

    def _refuse(self, headers: Headers) -> Problem | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        name = host.rpartition(":")[0] if host[-1:].isdigit() else host
        if self._hosts and name.strip("[]").lower() not in self._hosts:
            return _forbidden(f"host: {host[:200]!r} is not the manager's name")
        if origin is not None and origin.partition("://")[2] != host:
            return _forbidden(f"origin: a page of {origin[:200]!r} may not ask the manager")
        return None


def _forbidden(detail: str) -> Problem:
    return Problem(title="PERMISSION_DENIED", status=403, detail=detail, error="forbidden")
