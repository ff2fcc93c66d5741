"""Asks a plugin, as the checks need it: bounded in time and size, and every surprise a Failed."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from services.reward.plugins.check_replies import Failed, Reply, results_of
from services.reward.plugins.check_samples import SAMPLES
from services.reward.plugins.contract import CONTRACT, Info, NotScored, PluginSample, Scored
from services.reward.plugins.exchange import encoding_of

MAX_ANSWER = 16 << 20
"""Bytes; a thousand results with their parts stay far below."""
LEAVE_SECONDS = 0.1
"""For the plugin to notice that its caller comes or goes."""
SAME_TOKEN = "\0"


class Asker:
    """One plugin. `info` is what it said of itself, once it was asked."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        token: str | None,
        trust: ssl.SSLContext | None,
        timeout: float,
        leave_seconds: float = LEAVE_SECONDS,
    ) -> None:
        self._session, self._url, self._trust = session, url.rstrip("/"), trust
        self.token, self.timeout, self._leave_seconds = token, timeout, leave_seconds
        self.info = Info(contract=CONTRACT, name="unknown")
        self.alone: list[float | None] = []
        """What each of the kit's samples got by itself."""

    async def ask(
        self, method: str, path: str, body: bytes | None = None, token: str | None = SAME_TOKEN
    ) -> Reply:
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            **self._authorization(token),
        }
        try:
            async with (
                asyncio.timeout(self.timeout),
                self._session.request(
                    method,
                    self._url + path,
                    data=None if body is None else io.BytesIO(body),
                    headers=headers,
                    allow_redirects=False,
                    ssl=self._trust or True,
                ) as response,
            ):
                if (encoding := encoding_of(response)) != "identity":
                    raise Failed(f"the answer is compressed ({encoding}), which was not asked for")
                return Reply(response.status, await _read(response))
        except TimeoutError:
            raise Failed(
                f"no answer within {self.timeout:g} s; answer sooner, or give --timeout"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            text = str(error) or type(error).__name__
            raise Failed(f"the connection broke: {text}") from None

    def few(self, count: int) -> tuple[PluginSample, ...]:
        """The kit's first samples, no more than the plugin takes at a time."""
        return SAMPLES[: min(count, self.info.max_samples)]

    async def post(
        self,
        samples: Sequence[PluginSample],
        /,
        key: str | None = None,
        token: str | None = SAME_TOKEN,
        **others: Any,
    ) -> Reply:
        return await self.ask("POST", "/v1/score", request_body(samples, key, **others), token)

    async def score(
        self, samples: Sequence[PluginSample], key: str | None = None
    ) -> list[Scored | NotScored]:
        return results_of(await self.post(samples, key), len(samples))

    async def send_and_leave(self, body: bytes, num_bytes: int) -> None:
        """Sends the first bytes of a request and breaks the connection."""
        url = urlsplit(self._url)
        secure = url.scheme == "https"
        head = f"POST {url.path}/v1/score HTTP/1.1\r\nHost: {url.netloc}\r\n"
        fields = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **self._authorization(SAME_TOKEN),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        try:
            async with asyncio.timeout(self.timeout):
                _, writer = await asyncio.open_connection(
                    url.hostname,
                    url.port or (443 if secure else 80),
                    ssl=(self._trust or True) if secure else None,
                )
                writer.write((head + lines + "\r\n").encode() + body[:num_bytes])
                await writer.drain()
                await asyncio.sleep(self._leave_seconds)  # for the plugin to begin with it
                writer.transport.abort()
                await asyncio.sleep(self._leave_seconds)  # and to notice
        except (TimeoutError, OSError) as error:
            raise Failed(f"the connection broke: {error or 'no answer in time'}") from None

    def _authorization(self, token: str | None) -> Mapping[str, str]:
        token = self.token if token == SAME_TOKEN else token
        return {} if token is None else {"Authorization": f"Bearer {token}"}


def request_body(
    samples: Sequence[PluginSample], key: str | None = None, /, **others: Any
) -> bytes:
    """A ScoreRequest; `others` replace its fields, or leave one out where they are None."""
    fields = {
        "contract": CONTRACT,
        "idempotency_key": key or new_key(),
        "samples": [sample.model_dump(exclude_defaults=True) for sample in samples],
        **others,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def new_key() -> str:
    return f"check-{uuid.uuid4()}"


async def _read(response: aiohttp.ClientResponse) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(1 << 16):
        size += len(chunk)
        if size > MAX_ANSWER:
            raise Failed(f"the answer is larger than {MAX_ANSWER >> 20} MiB")
        chunks.append(chunk)
    return b"".join(chunks)
