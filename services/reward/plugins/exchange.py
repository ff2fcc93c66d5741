"""One HTTP request and its answer, from a server that is not trusted.

An answer is read in pieces and never beyond its limit; compressed answers are refused, since they
may unpack to any size; redirects are followed only within the plugin's own origin. Deadlines are
the caller's: cancelling closes the connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

from services.reward.plugins.call_errors import (
    AnswerTooLargeError,
    CallError,
    error_of_answer,
    error_of_call,
)
from services.reward.plugins.guard import GuardedResolver, same_origin

KEEP_ALIVE_SECONDS = 4
"""Below the 5 s after which uvicorn closes an idle connection, so that it is rarely met half
closed."""
MAX_REDIRECTS = 2
MAX_PROBLEM_BYTES = 16 << 10
REPEATING = (HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT)
"""Redirects that keep method and body."""


@dataclass(frozen=True, slots=True)
class PluginRequest:
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


async def exchange(session: aiohttp.ClientSession, request: PluginRequest) -> bytes:
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
        raise error_of_call(error) from None
    except ValueError as error:  # as of yarl and idna, for what can be no host
        raise CallError(f"the URL cannot be called: {error}") from None


async def _follow(
    session: aiohttp.ClientSession, request: PluginRequest, connection: SimpleNamespace
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
                content, _ = await _read(response, MAX_PROBLEM_BYTES)
                raise error_of_answer(response, content)
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


async def _note_reuse(_session: Any, context: SimpleNamespace, _parameters: Any) -> None:
    context.trace_request_ctx.reused = True
