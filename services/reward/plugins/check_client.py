"""Asks a plugin, as the checks need it: bounded in time and size, and every surprise a Failed."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel, ValidationError

from services.reward.outcome import Fault
from services.reward.plugins.check_samples import SAMPLES
from services.reward.plugins.contract import (
    CONTRACT,
    Info,
    NotScored,
    PluginSample,
    Problem,
    ScoreAnswer,
    Scored,
)
from services.reward.plugins.exchange import encoding_of
from services.reward.plugins.protocols import max_bytes, read_scores

MAX_ANSWER = 16 << 20
"""Bytes; a thousand results with their parts stay far below."""
LEAVE_SECONDS = 0.1
SAME_TOKEN = "\0"

Model = TypeVar("Model", bound=BaseModel)


class Failed(Exception):
    """The plugin does not keep the contract: how, and the remedy."""


class Skipped(Exception):
    """The check cannot tell: why, and what would let it."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes

    def read(self, model: type[Model], status: int = 200) -> Model:
        if self.status != status:
            raise Failed(f"status {self.status} instead of {status}: {self.excerpt()}")
        try:
            return model.model_validate_json(self.body, strict=True)
        except ValidationError as error:
            fault = error.errors()[0]
            place = ".".join(map(str, fault["loc"])) or "body"
            raise Failed(
                f"status {status}, but not a {model.__name__}: {place}: {fault['msg']}"
            ) from None

    def excerpt(self) -> str:
        return ascii(self.body[:120].decode("utf-8", "replace"))


class Asker:
    """One plugin. `info` is what it said of itself, once it was asked."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        token: str | None,
        trust: ssl.SSLContext | None,
        timeout: float,
    ) -> None:
        self._session, self._url, self._trust = session, url.rstrip("/"), trust
        self.token, self.timeout = token, timeout
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
                await asyncio.sleep(LEAVE_SECONDS)  # for the plugin to begin with it
                writer.transport.abort()
                await asyncio.sleep(LEAVE_SECONDS)  # and to notice
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


def results_of(reply: Reply, num_samples: int) -> list[Scored | NotScored]:
    results = reply.read(ScoreAnswer).results
    if len(results) != num_samples:
        raise Failed(f"{len(results)} results for {num_samples} samples; answer one a sample")
    if len(reply.body) > (most := max_bytes(num_samples)):
        raise Failed(f"the answer has {len(reply.body):,} bytes; a run reads {most:,} of it")
    for index, outcome in enumerate(read_scores(reply.body, num_samples)):
        if isinstance(outcome, Fault) and isinstance(results[index], Scored):
            raise Failed(f"sample {index}: {outcome.reason}, so a run would not take it")
    return results


def expect_problem(reply: Reply, status: int) -> str:
    """The text of a Problem under this status."""
    return reply.read(Problem, status).error


def marks_of(results: Sequence[Scored | NotScored]) -> list[float | None]:
    """What is compared: the scores; None where there is none."""
    return [result.score if isinstance(result, Scored) else None for result in results]


async def _read(response: aiohttp.ClientResponse) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(1 << 16):
        size += len(chunk)
        if size > MAX_ANSWER:
            raise Failed(f"the answer is larger than {MAX_ANSWER >> 20} MiB")
        chunks.append(chunk)
    return b"".join(chunks)
