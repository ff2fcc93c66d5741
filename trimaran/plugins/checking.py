"""What conformance kits share: checks in order, and requests whose every surprise is a Failed.

A check passes, fails, or is skipped with the reason. One that needs what an earlier one found
missing is skipped, so that one fault is one failure.
"""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import aiohttp
from pydantic import BaseModel

from trimaran.plugins.exchange import PluginRequest, ask
from trimaran.plugins.forms import CallError, Problem, parse

MAX_ANSWER = 16 << 20
"""Bytes; a thousand results with their parts stay far below."""
LEAVE_SECONDS = 0.1
"""For the plugin to notice that its caller comes or goes."""
SAME_TOKEN = "\0"

Model = TypeVar("Model", bound=BaseModel)


class Failed(Exception):
    """The plugin does not keep the contract: how, and the remedy."""


class CheckSkipped(Exception):
    """The check cannot decide: why, and what would let it."""


@dataclass(frozen=True, slots=True)
class PluginReply:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginAccess:
    """How one plugin is asked."""

    url: str
    token: str | None = None
    trust: ssl.SSLContext | None = None
    timeout: float = 30.0
    """Seconds, for each request."""
    leave_seconds: float = LEAVE_SECONDS


class Asker:
    """Asks one plugin."""

    def __init__(self, session: aiohttp.ClientSession, access: PluginAccess) -> None:
        self._session, self._access = session, access
        self.token, self.timeout = access.token, access.timeout

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = SAME_TOKEN,
        **headers: str,
    ) -> PluginReply:
        token = self.token if token == SAME_TOKEN else token
        headers["Content-Type"] = "application/json"
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        url = self._access.url.rstrip("/") + path
        request = PluginRequest(method, url, MAX_ANSWER, body, headers, self._access.trust)
        try:
            async with asyncio.timeout(self.timeout):
                answer = await ask(self._session, request)
        except TimeoutError:
            raise Failed(
                f"no answer within {self.timeout:g} s; answer sooner, or give --timeout"
            ) from None
        except CallError as error:
            raise Failed(str(error)) from None
        return PluginReply(answer.status, answer.body)

    async def send_and_leave(self, path: str, body: bytes, num_bytes: int) -> None:
        """Sends the first bytes of a request and breaks the connection."""

        async def part() -> AsyncIterator[bytes]:
            yield body[:num_bytes]
            await asyncio.sleep(self.timeout)

        length = {"Content-Length": str(len(body))}
        with suppress(TimeoutError):
            async with asyncio.timeout(self._access.leave_seconds):  # for the plugin to begin
                await self.ask("POST", path, part(), **length)
        await asyncio.sleep(self._access.leave_seconds)  # and to notice


AnyAsker = TypeVar("AnyAsker", bound=Asker)


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: str
    verdict: Literal["pass", "fail", "skipped"]
    detail: str


@dataclass(frozen=True, slots=True)
class Check(Generic[AnyAsker]):
    """One question to a plugin.

    Example:
        async def is_quick(asker: Asker) -> str:
            begin = time.monotonic()
            await asker.ask("GET", "/v1/health")
            if (seconds := time.monotonic() - begin) > 1:
                raise Failed(f"its health takes {seconds:.1f} s; answer within 1 s")
            return f"{seconds:.1f} s"

        Check("quick", is_quick)
    """

    name: str
    run: Callable[[AnyAsker], Awaitable[str]]
    """What it saw; raises Failed or CheckSkipped."""
    needs: tuple[str, ...] = ("schema",)
    """Checks that have to pass before."""


async def run_checks(
    make_asker: Callable[[aiohttp.ClientSession], AnyAsker],
    checks: Sequence[Check[AnyAsker]],
    show: Callable[[CheckResult], None] | None = None,
) -> tuple[CheckResult, ...]:
    """One after another; `show` is given each."""
    findings: dict[str, CheckResult] = {}
    # A connection for each request: what one check does to its own is no fault of the next.
    connector = aiohttp.TCPConnector(force_close=True)
    limit = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
        asker = make_asker(session)
        for check in checks:
            # One that was not asked for is taken to pass.
            missing = [n for n in check.needs if n in findings and findings[n].verdict != "pass"]
            if missing:
                finding = CheckResult(
                    check.name, "skipped", f"needs {missing[0]}, which did not pass"
                )
            else:
                finding = await _run(check, asker)
            findings[check.name] = finding
            if show is not None:
                show(finding)
    return tuple(findings.values())


def new_key() -> str:
    return f"check-{uuid.uuid4()}"


async def _run(check: Check[AnyAsker], asker: AnyAsker) -> CheckResult:
    try:
        return CheckResult(check.name, "pass", _printable(await check.run(asker)))
    except Failed as error:
        return CheckResult(check.name, "fail", _printable(str(error)))
    except CheckSkipped as reason:
        return CheckResult(check.name, "skipped", str(reason))


def _printable(text: str) -> str:
    """A plugin's words go to a terminal: one line, and no control of it."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:1000])
