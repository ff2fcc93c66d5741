"""Why a call of a plugin failed, in one line, and whether it may be sent again."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import aiohttp
from pydantic import ValidationError

from services.reward.plugins.contract import Problem
from services.reward.plugins.guard import AddressRefusedError

RETRIED = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


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


def error_of_answer(response: aiohttp.ClientResponse, content: bytes) -> CallError:
    """Of an answer that is no 200; `content` is the beginning of its body."""
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


def error_of_call(error: aiohttp.ClientError | OSError) -> CallError:
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


def _seconds(retry_after: str) -> float:
    """Of a Retry-After header: seconds or a date (RFC 9110, 10.2.3); 0 for anything else."""
    if re.fullmatch(r"[0-9]{1,9}", retry_after):
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
