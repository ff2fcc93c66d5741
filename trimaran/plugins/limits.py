"""Limits of a plugin's server: who may ask, how much at once, and how long it waits for a request."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Collection
from dataclasses import dataclass

from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from trimaran.wire.http_problems import Problem, answer, read_body, refusal, replay

logger = logging.getLogger(__name__)

MIB = 1 << 20
OPEN_TO_ALL = "/v1/health"
"""Probes of health bring no token."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    max_body: int = 64 * MIB
    """Bytes. An answer of 10 million control characters takes 60 million as JSON escapes."""
    max_requests: int = 32
    """At work at a time; further ones are asked to come back."""
    body_seconds: float = 60.0
    """Until a request has arrived whole."""
    work_seconds: float = 600.0
    """Until a request is answered."""


class Refused(HTTPException):
    """An error of the contract; `again`: the same request may be sent again, in a second."""

    def __init__(self, status: int, detail: str, again: bool = False) -> None:
        super().__init__(status, detail, {"Retry-After": "1"} if again else None)


class Guard:
    """An ASGI middleware: looks at the token and at how many requests are at work, and then reads the
    body, within bounds, as JSON without NaN, lone surrogates or deep nests."""

    def __init__(
        self, app: ASGIApp, token: str | None, limits: ServerLimits, posts: Collection[str]
    ) -> None:
        """`posts`: the paths that take a body."""
        self._app, self._limits, self._posts = app, limits, posts
        self._token = None if token is None else token.encode()
        self._num_at_work = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] != OPEN_TO_ALL and not self._has_token(Headers(scope=scope)):
            detail = "wrong or missing token; send the header Authorization: Bearer TOKEN"
            headers = {"WWW-Authenticate": "Bearer"}
            await answer(refusal(401, detail), headers)(scope, receive, send)
        elif scope["method"] == "POST" and scope["path"] in self._posts:
            await self._admit(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _has_token(self, headers: Headers) -> bool:
        if self._token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # The time that this takes says nothing of where they differ.
        same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token)
        return same and scheme.lower() == "bearer"

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._num_at_work >= self._limits.max_requests:
            detail = f"overloaded: {self._num_at_work} requests are at work; try again later"
            await _come_back(detail)(scope, receive, send)
            return
        self._num_at_work += 1
        try:
            body = await self._read(Headers(scope=scope), receive)
            if isinstance(body, Problem):
                await answer(body)(scope, receive, send)
            else:
                await self._app(scope, replay(body, receive), send)
        except asyncio.CancelledError:
            # The server ends and cancels what is late; its caller may ask another, or this again.
            await _come_back("the server ends; send it again later")(scope, receive, send)
        except Exception as error:
            logger.exception("a request failed")
            detail = f"the server failed ({type(error).__name__}); its log says how"
            await answer(refusal(500, detail))(scope, receive, send)
        finally:
            self._num_at_work -= 1

    async def _read(self, headers: Headers, receive: Receive) -> bytes | Problem:
        most = self._limits.max_body
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > most:
            return refusal(413, f"the body: more than {most // MIB} MiB; send less")
        body = await read_body(receive, most, self._limits.body_seconds)
        if isinstance(body, bytes):
            try:
                from_json(body, allow_inf_nan=False)
            except ValueError as error:
                return refusal(422, f"the body: not JSON: {error}")
        return body


def _come_back(detail: str) -> ASGIApp:
    return answer(refusal(503, detail), {"Retry-After": "1"})
