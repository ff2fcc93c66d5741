"""Requests to one plugin: its places, its deadline, its tries, its token."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import aiohttp
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt
from tenacity.stop import stop_before_delay
from tenacity.wait import wait_random_exponential

from services.reward.plugins.call_errors import CallError, one_line
from services.reward.plugins.credentials import read_certificates, read_token
from services.reward.plugins.exchange import PluginRequest, exchange
from services.reward.plugins.guard import is_local
from trimaran.config import PluginSection

logger = logging.getLogger(__name__)

BACKOFF = wait_random_exponential(multiplier=0.2, max=5)
"""Full jitter: a random wait below 0.2 s, 0.4 s, 0.8 s, …"""


class OverloadedError(CallError):
    """No place became free in time: the plugin was not even asked."""


@dataclass(slots=True)
class _Progress:
    """How far a call came, for the one who has to say why it is overdue."""

    seconds: float
    started: bool = False
    last: CallError | None = None


class PluginCaller:
    """Raises InputError for a token variable or a certificate file that cannot be used."""

    def __init__(self, section: PluginSection, session: aiohttp.ClientSession) -> None:
        self._section, self._session = section, session
        self.url = section.url.rstrip("/") if section.protocol == "trimaran" else section.url
        self._token = read_token(section)
        self._tls = read_certificates(section)
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

    def said(self, words: object) -> str:
        """For logs and records: one line, without the token, which a plugin may repeat."""
        return one_line(_without(str(words), self._token) if self._token else str(words), 600)

    async def _try(self, request: PluginRequest, progress: _Progress) -> bytes:
        async with self._places:
            progress.started = True
            try:
                return await exchange(self._session, request)
            except CallError as error:
                progress.last = error
                raise

    def _overdue(self, progress: _Progress) -> CallError:
        seconds = f"{progress.seconds:.3g} s"
        if not progress.started:
            return OverloadedError(
                f"overloaded: no place among its {self._section.max_concurrency} calls within"
                f" {seconds}; raise plugin.max_concurrency or plugin.timeout"
            )
        last = f"; the last try: {progress.last}" if progress.last else ""
        return CallError(f"no answer within {seconds}{last}")


def _without(text: str, token: str) -> str:
    """Also where `one_line` has cut the text within the token."""
    text = text.replace(token, "***")
    for length in range(len(token) - 1, 3, -1):
        text = text.replace(f"{token[:length]}…", "***…")
    return text


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, CallError) else 0.0
    return max(asked, BACKOFF(state))
