"""One HTTP request and its answer, from a server that is not trusted.

An answer is read in pieces and never beyond its limit; compressed answers are refused, since they
may unpack to any size; redirects are followed only within the plugin's own origin. Deadlines are
the caller's: cancelling closes the connection.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import aiohttp
from pydantic import ValidationError
from yarl import URL

from services.reward.plugins.contract import Problem
from services.reward.plugins.guard import AddressRefusedError, GuardedResolver, same_origin

KEEP_ALIVE_SECONDS = 4
"""Below the 5 s after which uvicorn closes an idle connection, so that it is rarely met half
closed."""
MAX_REDIRECTS = 2
MAX_PROBLEM_BYTES = 16 << 10
RETRIED = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
REPEATING = (HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT)
"""Redirects that keep method and body."""


class CallError(Exception):
    """Why a plugin gave no answer that can be used."""

    def __init__(self, reason: str, *, retry: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry = retry
        """The same request may be sent again."""
        self.retry_after = retry_after
        """Seconds that the server asks to wait."""


class AnswerTooLargeError(CallError):
    pass


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    url: str
    max_bytes: int
    """Of the answer."""
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """May hold the token: never shown."""
    tls: ssl.SSLContext | None = None


def open_session(resolver: GuardedResolver) -> aiohttp.ClientSession:
    """Without cookies, proxies of the environment or netrc; callers bound their connections."""
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,
            resolver=resolver,
            # Checked addresses are kept: one lookup a host at a time, so that a name server that
            # hangs for one host does not use up the threads in which all are looked up.
            ttl_dns_cache=10,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        trace_configs=[trace],
    )


async def exchange(session: aiohttp.ClientSession, request: Request) -> bytes:
    """The body of a 200. Raises CallError."""
    connection = SimpleNamespace(reused=False)
    try:
        try:
            return await _follow(session, request, connection)
        except aiohttp.ClientConnectionError:
            if not connection.reused:
                raise
            # The server closed an idle connection while we took it up: nobody failed.
            return await _follow(session, request, connection)
    except (aiohttp.ClientError, OSError) as error:
        raise _call_error(error) from None
    except ValueError as error:  # as of yarl and idna, for what can be no host
        raise CallError(f"the URL cannot be called: {error}") from None


async def _follow(
    session: aiohttp.ClientSession, request: Request, connection: SimpleNamespace
) -> bytes:
    url = URL(request.url)
    for _ in range(1 + MAX_REDIRECTS):
        async with session.request(
            request.method,
            url,
            data=request.body,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"}
            | dict(request.headers),
            allow_redirects=False,
            ssl=request.tls or True,
            trace_request_ctx=connection,
        ) as response:
            if 300 <= response.status < 400:
                url = _redirected(url, response)
                continue
            if response.status != HTTPStatus.OK:
                raise await _status_error(response)
            return await _body(response, request.max_bytes)
    raise CallError(f"redirects more than {MAX_REDIRECTS} times; give the last URL")


def _redirected(url: URL, response: aiohttp.ClientResponse) -> URL:
    location = response.headers.get("Location", "nowhere")
    target = same_origin(url, location)
    if response.status not in REPEATING or target is None:
        raise CallError(
            f"answers {response.status} and redirects to {location}, which is not followed;"
            " give the URL that scores, and allow its host"
        )
    return target


async def _body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    if (encoding := encoding_of(response)) != "identity":
        raise CallError(f"the answer is compressed ({encoding}), which was not asked for")
    content, complete = await _read(response, limit)
    if not complete:
        raise AnswerTooLargeError(f"the answer is larger than {limit:,} bytes")
    return content


def encoding_of(response: aiohttp.ClientResponse) -> str:
    return response.headers.get("Content-Encoding", "identity").lower()


async def _read(response: aiohttp.ClientResponse, limit: int) -> tuple[bytes, bool]:
    """At most `limit` bytes, and whether that is all; closes the connection if it is not."""
    content = bytearray()
    async for piece in response.content.iter_any():
        content += piece
        if len(content) > limit:
            response.close()
            return bytes(content[:limit]), False
    return bytes(content), True


async def _status_error(response: aiohttp.ClientResponse) -> CallError:
    content, _ = await _read(response, MAX_PROBLEM_BYTES)
    try:
        text = Problem.model_validate_json(content).error
    except ValidationError:
        text = content.decode("utf-8", "replace")
    retry_after = _seconds(response.headers.get("Retry-After", ""))
    asked = f"; it asks to wait {retry_after:g} s" if retry_after else ""
    return CallError(
        f"answers {response.status}: {one_line(text) or response.reason}{asked}",
        retry=response.status in RETRIED,
        retry_after=retry_after,
    )


def _seconds(retry_after: str) -> float:
    """Of a Retry-After header: seconds or a date (RFC 9110, 10.2.3); 0 for anything else."""
    if re.fullmatch(r"[0-9]{1,9}", retry_after):
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


def _call_error(error: aiohttp.ClientError | OSError) -> CallError:
    match error:
        case aiohttp.ClientConnectorDNSError():
            refused = isinstance(error.os_error, AddressRefusedError)
            text = str(error.os_error) if refused else f"cannot be resolved: {error.os_error}"
            return CallError(text, retry=not refused)
        case aiohttp.ClientSSLError():
            return CallError(f"TLS fails: {error}")
        case aiohttp.ClientConnectorError():
            return CallError(f"cannot be reached: {error.os_error}", retry=True)
        case aiohttp.ClientConnectionError() | aiohttp.ClientPayloadError() | OSError():
            return CallError(f"the connection broke: {error}", retry=True)
        case aiohttp.ClientResponseError():
            return CallError(f"the answer is not HTTP: {error.message}")
        case _:
            return CallError(f"{type(error).__name__}: {error}")


def one_line(text: str, limit: int = 300) -> str:
    """Foreign text for a log: printable, short."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return line if len(line) <= limit else f"{line[:limit]}…"


async def _note_reuse(_session: Any, context: SimpleNamespace, _parameters: Any) -> None:
    context.trace_request_ctx.reused = True
