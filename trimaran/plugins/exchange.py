"""One HTTP request and its answer, from a server that is not trusted.

An answer is read in pieces and never beyond its limit; compressed answers are refused, since they
may unpack to any size; redirects are not followed. Deadlines are the caller's: cancelling closes the
connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import aiohttp
from pydantic import ValidationError

from trimaran.plugins.forms import CallError, Problem
from trimaran.plugins.guard import AddressRefusedError, GuardedResolver

KEEP_ALIVE_SECONDS = 4
"""Below the 5 s after which uvicorn closes an idle connection, so that it is rarely met half
closed."""
MAX_PROBLEM_BYTES = 16 << 10
RETRIED = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


class AnswerTooLargeError(CallError):
    """The answer is larger than its limit."""


@dataclass(frozen=True, slots=True)
class PluginRequest:
    method: str
    url: str
    max_bytes: int
    """The limit of an answer."""
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """May hold the token: never shown."""
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


def open_session(resolver: GuardedResolver) -> aiohttp.ClientSession:
    """Without cookies, proxies of the environment or netrc; callers bound their connections."""
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
    )


async def exchange(session: aiohttp.ClientSession, request: PluginRequest) -> bytes:
    """The body of a 200. Raises CallError."""
    answer = await ask(session, request)
    if answer.status == HTTPStatus.OK:
        return answer.body
    if 300 <= answer.status < 400:
        location = answer.headers.get("Location", "nowhere")
        raise CallError(
            f"answers {answer.status} and redirects to {location}, which is not followed;"
            " give the URL that answers, and allow its host"
        )
    try:
        text = Problem.model_validate_json(answer.body).detail
    except ValidationError:
        text = answer.body.decode("utf-8", "replace")
    wait = answer.headers.get("Retry-After", "")
    seconds = float(wait) if wait.isascii() and wait.isdecimal() and len(wait) < 10 else 0.0
    asked = f"; it asks to wait {seconds:g} s" if seconds else ""
    raise CallError(
        f"answers {answer.status}: {text.strip() or answer.reason}{asked}",
        retry=answer.status in RETRIED,
        retry_after=seconds,
    )


async def ask(session: aiohttp.ClientSession, request: PluginRequest) -> HttpAnswer:
    """Whatever the status is. Raises CallError where there is none, and for a 200 that is compressed
    or too large; of other answers the beginning is read."""
    try:
        async with session.request(
            request.method,
            request.url,
            data=request.body,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"}
            | dict(request.headers),
            allow_redirects=False,
            ssl=request.tls or True,
        ) as response:
            is_answer = response.status == HTTPStatus.OK
            encoding = response.headers.get("Content-Encoding", "identity").lower()
            if is_answer and encoding != "identity":
                raise CallError(f"the answer is compressed ({encoding}), which was not asked for")
            limit = request.max_bytes if is_answer else MAX_PROBLEM_BYTES
            body = await _read(response, limit)
            if is_answer and len(body) > limit:
                raise AnswerTooLargeError(f"the answer is larger than {limit:,} bytes")
            return HttpAnswer(
                response.status, response.reason or "", response.headers, body[:limit]
            )
    except (aiohttp.ClientError, OSError) as error:
        raise _why(error) from None
    except ValueError as error:  # as of yarl and idna, for what can be no host
        raise CallError(f"the URL cannot be called: {error}") from None


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Closes the connection where there is more than `limit`, and gives a little of that."""
    content = bytearray()
    async for piece in response.content.iter_any():
        content += piece
        if len(content) > limit:
            response.close()
            break
    return bytes(content)


def _why(error: aiohttp.ClientError | OSError) -> CallError:
    match error:
        case aiohttp.ClientConnectorDNSError():
            refused = isinstance(error.os_error, AddressRefusedError)
            text = str(error.os_error) if refused else f"cannot be resolved: {error.os_error}"
            return CallError(text, retry=not refused)
        case aiohttp.ClientSSLError():
            return CallError(f"TLS fails: {error}")
        case aiohttp.ClientConnectorError():
            return CallError(f"cannot be reached: {error.os_error}", retry=True)
        case aiohttp.ClientResponseError():
            return CallError(f"the answer is not HTTP: {error.message}")
        case _:
            text = str(error) or type(error).__name__
            return CallError(f"the connection broke: {text}", retry=True)
