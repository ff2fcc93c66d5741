"""Limits of a reward server: who may ask, how much at once, and how long it waits for a request."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException

logger = logging.getLogger(__name__)

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerLimits:
    max_body: int = 64 * MIB
    """Bytes. An answer of 10 million control characters takes 60 million as JSON escapes."""
    max_tokens: int = 8_000_000
    """Lengths of all completions of one request together."""
    max_requests: int = 32
    """At work at a time; more are told to come back."""
    body_seconds: float = 60.0
    """Until a request has arrived whole."""
    score_seconds: float = 600.0
    """Until a request is scored."""


class Refused(HTTPException):
    """An error of the contract: its status and the text of its Problem."""

    def __init__(self, status: int, error: str, **headers: str) -> None:
        """Headers with _ for -."""
        super().__init__(
            status, error, {name.replace("_", "-"): value for name, value in headers.items()}
        )


class Guard:
    """Looks at each request before anything of it is read: its token, and how many are at work."""

    def __init__(self, token: str | None, limits: ServerLimits) -> None:
        self._token = None if token is None else token.encode()
        self._limits = limits
        self._num_at_work = 0

    @property
    def wants_token(self) -> bool:
        return self._token is not None

    def route_class(self, *, open_to_all: bool = False) -> type[APIRoute]:
        """A class of routes that this guard watches. Probes of health bring no token."""
        guard = self

        class GuardedRoute(APIRoute):
            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                handle = super().get_route_handler()

                async def guarded(request: Request) -> Response:
                    if not open_to_all:
                        guard.check_token(request)
                    if request.method != "POST":
                        return await handle(request)
                    return await guard.admit(request, handle)

                return guarded

        return GuardedRoute

    def check_token(self, request: Request) -> None:
        if self._token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # The time that this takes says nothing of where they differ.
        right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token)
        if scheme.lower() != "bearer" or not right:
            raise Refused(
                401,
                "wrong or missing token; send the header Authorization: Bearer TOKEN",
                WWW_Authenticate="Bearer",
            )

    async def admit(
        self, request: Request, handle: Callable[[Request], Coroutine[Any, Any, Response]]
    ) -> Response:
        if self._num_at_work >= self._limits.max_requests:
            raise Refused(
                503,
                f"overloaded: {self._num_at_work} requests are at work; try again later",
                Retry_After="1",
            )
        self._num_at_work += 1
        try:
            return await handle(BoundedRequest(request, self._limits))
        except (HTTPException, RequestValidationError):
            raise
        except asyncio.CancelledError:
            # The server ends and cancels what is late; its caller may ask another, or this again.
            raise Refused(503, "the server ends; send it again later", Retry_After="1") from None
        except Exception as error:
            logger.exception("a request failed")
            raise Refused(
                500, f"the server failed ({type(error).__name__}); its log says how"
            ) from error
        finally:
            self._num_at_work -= 1


class BoundedRequest(Request):
    """Its body has a size and a deadline; its JSON has no NaN, lone surrogate or deep nest."""

    def __init__(self, request: Request, limits: ServerLimits) -> None:
        super().__init__(request.scope, request.receive)
        self._limits = limits
        self._whole: bytes | None = None

    async def body(self) -> bytes:
        if self._whole is None:
            try:
                async with asyncio.timeout(self._limits.body_seconds):
                    self._whole = await self._read()
            except TimeoutError:
                raise Refused(
                    408, f"the request did not arrive within {self._limits.body_seconds:g} s"
                ) from None
        return self._whole

    async def json(self) -> Any:
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise Refused(422, f"not JSON: {error}") from None

    async def _read(self) -> bytes:
        most = self._limits.max_body
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > most:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.stream():
            size += len(chunk)
            if size > most:
                raise self._too_large()
            chunks.append(chunk)
        return b"".join(chunks)

    def _too_large(self) -> Refused:
        return Refused(
            413, f"more than {self._limits.max_body // MIB} MiB; send fewer samples at a time"
        )
