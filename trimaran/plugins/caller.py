"""Requests to one plugin: its places, its deadline, its tries, its token."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass

import aiohttp
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt
from tenacity.stop import stop_before_delay
from tenacity.wait import wait_random_exponential

from trimaran.config import PluginSection
from trimaran.errors import InputError
from trimaran.host.system_errors import refused
from trimaran.plugins.exchange import PluginRequest, exchange
from trimaran.plugins.forms import CallError
from trimaran.plugins.guard import is_local

logger = logging.getLogger(__name__)

BACKOFF = wait_random_exponential(multiplier=0.2, max=5)
"""Full jitter: a random wait below 0.2 s, 0.4 s, 0.8 s, …"""


class OverloadedError(CallError):
    """No place became free in time: the plugin was not even asked."""


@dataclass(slots=True)
class _Progress:
    """How far a call came, which its error says when it is overdue."""

    seconds: float
    started: bool = False
    last: CallError | None = None


class PluginCaller:
    """Raises InputError for a token variable or a certificate file that cannot be used."""

    def __init__(self, section: PluginSection, session: aiohttp.ClientSession) -> None:
        self._section, self._session = section, session
        self.url = section.url.rstrip("/") if section.protocol == "trimaran" else section.url
        self._token = _read_token(section)
        self._tls = _read_certificates(section)
        self._places = asyncio.Semaphore(section.max_concurrency)
        if self._token and section.url.startswith("http:") and not is_local(section.url):
            logger.warning("%s: the token travels unencrypted; use https", self.url)

    async def call(
        self, deadline: float, method: str, path: str, max_bytes: int, body: bytes | None = None
    ) -> bytes:
        """The answer to one request, all tries within the deadline (of the loop's clock).

        Raises CallError.
        """
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = PluginRequest(method, self.url + path, max_bytes, body, headers, self._tls)
        progress = _Progress(deadline - asyncio.get_running_loop().time())
        tries = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, CallError) and error.retry),
            stop=stop_after_attempt(self._section.attempts) | stop_before_delay(progress.seconds),
            wait=_wait,
            reraise=True,
        )
        try:
            async with asyncio.timeout_at(deadline):
                return await tries(self._try, request, progress)
        except TimeoutError:
            raise self._overdue(progress) from None

    def said(self, words: object, limit: int = 600) -> str:
        """For logs and records: without the token, which a plugin may repeat, in one printable line,
        short."""
        text = str(words)
        text = text.replace(self._token, "***") if self._token else text
        line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
        return line if len(line) <= limit else f"{line[:limit]}…"

    async def _try(self, request: PluginRequest, progress: _Progress) -> bytes:
        async with self._places:
            progress.started = True
            try:
                return await exchange(self._session, request)
            except CallError as error:
                progress.last = error
                raise

    def _overdue(self, progress: _Progress) -> CallError:
        seconds = f"{round(progress.seconds, 1):g} s"
        if not progress.started:
            return OverloadedError(
                f"overloaded: no place among its {self._section.max_concurrency} calls within"
                f" {seconds}; raise plugin.max_concurrency or plugin.timeout"
            )
        last = f"; the last try: {progress.last}" if progress.last else ""
        return CallError(f"no answer within {seconds}{last}")


def forget_tokens(sections: Iterable[PluginSection]) -> None:
    """After they were read: processes that are started from now on do not inherit them."""
    for section in sections:
        if section.token_variable is not None:
            os.environ.pop(section.token_variable, None)


def _read_token(section: PluginSection) -> str | None:
    """From the environment; None where none is needed. Raises InputError, never with the token."""
    if section.token_variable is None:
        return None
    token = os.environ.get(section.token_variable, "").strip()
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        state = "holds what cannot be a bearer token" if token else "is not set"
        raise InputError(
            f"plugin {section.url}: the environment variable {section.token_variable} {state};"
            " set it where the service that calls it starts"
        )
    return token


def _read_certificates(section: PluginSection) -> ssl.SSLContext | None:
    """What https trusts; None for the system's. Raises InputError."""
    if section.ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=section.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise refused(
            f"plugin {section.url}: ca_file {section.ca_file} cannot be used",
            error,
            "give a file of certificates in PEM",
        ) from None


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, CallError) else 0.0
    return max(asked, BACKOFF(state))
