"""Asks a plugin, as the checks need it: bounded in time and size, and every surprise a Failed."""

from __future__ import annotations

import asyncio
import json
import math
import ssl
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel

from services.reward.outcome import Fault
from services.reward.plugins.calling.exchange import CallError, PluginRequest, ask
from services.reward.plugins.calling.protocols import max_bytes, parse, read_scores
from services.reward.plugins.contract import (
    CONTRACT,
    Info,
    NotScored,
    PluginMessage,
    PluginSample,
    Problem,
    ScoreAnswer,
    Scored,
)

MAX_ANSWER = 16 << 20
"""Bytes; a thousand results with their parts stay far below."""
LEAVE_SECONDS = 0.1
"""For the plugin to notice that its caller comes or goes."""
SAME_TOKEN = "\0"
TOLERANCE = 1e-6
"""Relative and absolute: arithmetic in another order is no other score."""
TEXTS = (
    "7",
    "8",
    "The sum of 3 and 4 is 7.",
    "It is 12, I believe.",
    "3 + 4 = 7\n#### 7",
    "\\boxed{7}",
    "So the result is \\boxed{9}.",
    "<think>3 + 4 makes 7</think><answer>\\boxed{7}</answer>",
    "Answer: 7",
    "I do not know; " + "let me think about it once more. " * 20,
)
"""Right and wrong, short and long, in the forms that rules look for: most rules score some differently."""

Model = TypeVar("Model", bound=BaseModel)


class Failed(Exception):
    """The plugin does not keep the contract: how, and the remedy."""


class CheckSkipped(Exception):
    """The check cannot decide: why, and what would let it."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes

    def read(self, model: type[Model], status: int = 200) -> Model:
        if self.status != status:
            excerpt = ascii(self.body[:120].decode("utf-8", "replace"))
            raise Failed(f"status {self.status} instead of {status}: {excerpt}")
        try:
            return parse(model, self.body)
        except CallError as error:
            raise Failed(f"status {status}, but not a {model.__name__}: {error}") from None

    def problem(self, status: int) -> str:
        """The text of a Problem under this status."""
        return self.read(Problem, status).detail

    def results(self, num_samples: int) -> list[Scored | NotScored]:
        results = self.read(ScoreAnswer).results
        if len(results) != num_samples:
            raise Failed(f"{len(results)} results for {num_samples} samples; answer one a sample")
        if len(self.body) > (most := max_bytes(num_samples)):
            raise Failed(f"the answer has {len(self.body):,} bytes; a run reads {most:,} of it")
        for index, outcome in enumerate(read_scores(self.body, num_samples)):
            if isinstance(outcome, Fault) and isinstance(results[index], Scored):
                raise Failed(f"sample {index}: {outcome.reason}, so a run would not take it")
        return results


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
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = SAME_TOKEN,
        **headers: str,
    ) -> Reply:
        token = self.token if token == SAME_TOKEN else token
        headers["Content-Type"] = "application/json"
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        url = self._url + path
        try:
            async with asyncio.timeout(self.timeout):
                answer = await ask(
                    self._session,
                    PluginRequest(method, url, MAX_ANSWER, body, headers, self._trust),
                )
        except TimeoutError:
            raise Failed(
                f"no answer within {self.timeout:g} s; answer sooner, or give --timeout"
            ) from None
        except CallError as error:
            raise Failed(str(error)) from None
        return Reply(answer.status, answer.body)

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
        return (await self.post(samples, key)).results(len(samples))

    async def send_and_leave(self, body: bytes, num_bytes: int) -> None:
        """Sends the first bytes of a request and breaks the connection."""

        async def part() -> AsyncIterator[bytes]:
            yield body[:num_bytes]
            await asyncio.sleep(self.timeout)

        length = {"Content-Length": str(len(body))}
        with suppress(TimeoutError):
            async with asyncio.timeout(self._leave_seconds):  # for the plugin to begin with it
                await self.ask("POST", "/v1/score", part(), **length)
        await asyncio.sleep(self._leave_seconds)  # and to notice


def request_body(
    samples: Sequence[PluginSample], /, key: str | None = None, **others: Any
) -> bytes:
    """A ScoreRequest; `others` replace its fields, or leave one out where they are None."""
    fields: Mapping[str, Any] = {
        "contract": CONTRACT,
        "idempotency_key": key or new_key(),
        "samples": [sample.model_dump(exclude_defaults=True) for sample in samples],
        **others,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def new_key() -> str:
    return f"check-{uuid.uuid4()}"


def sample(text: str, answer: str = "7", index: int = 0) -> PluginSample:
    question = PluginMessage(role="user", content="What is 3 + 4?")
    return PluginSample(
        messages=[question],
        text=text,
        answer=answer,
        prompt_id=f"check-{index}",
        num_tokens=len(text.split()),
    )


SAMPLES = tuple(sample(text, index=index) for index, text in enumerate(TEXTS))


def marks_of(results: Sequence[Scored | NotScored]) -> list[float | None]:
    """What is compared: the scores; None where there is none."""
    return [result.score if isinstance(result, Scored) else None for result in results]


def first_difference(first: Sequence[float | None], second: Sequence[float | None]) -> str | None:
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        same = one == other
        if one is not None and other is not None:
            same = math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        if not same:
            return f"sample {index} gets {other} rather than {one}"
    return None
