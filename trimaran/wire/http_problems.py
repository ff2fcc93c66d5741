"""Errors over HTTP as problem documents (RFC 9457), also those of the framework, and bounded bodies.

The manager and the server of reward plugins share them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from trimaran.errors import (
    ForbiddenError,
    InputError,
    InternalError,
    LimitError,
    NotFoundError,
    TrimaranError,
)
from trimaran.wire.status import status_of

MEDIA_TYPE = "application/problem+json"
STATUSES = {
    "INVALID_ARGUMENT": 422,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""HTTP's, by the canonical code that gRPC has for the same error."""
TITLES = {
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    413: "RESOURCE_EXHAUSTED",
    422: "INVALID_ARGUMENT",
    503: "UNAVAILABLE",
}
"""The canonical code of what is refused by its status; others are INTERNAL."""
FIELD = re.compile(r"(?:config: )?([a-z_][\w.\[\]-]*)(?: x [^:\n]*)?: ")
"""How our messages begin where they are about a field, or a product of some: the first is named."""
OF_FIELDS = InputError, NotFoundError, LimitError, ForbiddenError


class Problem(BaseModel):
    """What went wrong, and what to do about it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    title: str
    """The canonical code, such as NOT_FOUND: the same that gRPC answers with."""
    status: int
    detail: str
    """For people: it names the thing and the remedy."""
    error: str = ""
    """Our name of the error, such as `not-found`; the trailer `trimaran-error` of gRPC."""
    field: str = ""
    """Which field of the request it is about, where it is about one."""


def responses(
    statuses: tuple[int, ...], meanings: Mapping[int, str]
) -> dict[int | str, dict[str, Any]]:
    """For the schema of a path. `meanings`: what each status says."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": meanings[status], "content": content} for status in statuses}


def add_handlers(app: FastAPI) -> None:
    def openapi() -> dict[str, Any]:
        schema = FastAPI.openapi(app)
        schema.setdefault("components", {}).setdefault("schemas", {})
        schema["components"]["schemas"]["Problem"] = Problem.model_json_schema()
        for path in schema["paths"].values():
            for operation in path.values():
                if "security" in operation:
                    operation["security"] = [{}, {"HTTPBearer": []}]  # as the operator has it
        return schema

    app.openapi = openapi
    app.add_exception_handler(TrimaranError, _answer_ours)
    app.add_exception_handler(HTTPException, _answer_refused)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(Exception, _answer_unforeseen)


def problem_of(error: TrimaranError) -> Problem:
    status = status_of(error)
    assert status  # it is one of ours
    field = FIELD.match(str(error)) if isinstance(error, OF_FIELDS) else None
    return Problem(
        title=status.code.name,
        status=STATUSES[status.code.name],
        detail=status.text,
        error=dict(status.trailers)["trimaran-error"],
        field=field[1] if field else "",
    )


def refusal(status: int, detail: str) -> Problem:
    """What is refused by its HTTP status alone."""
    return Problem(title=TITLES.get(status, "INTERNAL"), status=status, detail=detail)


def answer(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(problem.model_dump(exclude_defaults=True))
    return Response(text, problem.status, headers, media_type=MEDIA_TYPE)


async def read_body(receive: Receive, max_bytes: int, seconds: float) -> bytes | Problem:
    """The whole body of a request, or why it is refused."""
    try:
        async with asyncio.timeout(seconds):
            chunks: list[bytes] = []
            size, more = 0, True
            while more:
                message = await receive()
                chunk = message.get("body", b"")
                more = message.get("more_body", False)
                size += len(chunk)
                if size > max_bytes:
                    return refusal(413, f"the body: more than {max_bytes >> 20} MiB")
                chunks.append(chunk)
            return b"".join(chunks)
    except TimeoutError:
        return refusal(408, f"the body: did not arrive within {seconds:g} s; send it again")


def replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read, and then what follows it: the end of the connection."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again


async def _answer_ours(_: Request, error: Exception) -> Response:
    assert isinstance(error, TrimaranError)
    problem = problem_of(error)
    more = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}
    return answer(problem, more.get(problem.status))


async def _answer_refused(request: Request, error: Exception) -> Response:
    """By a handler; or by the framework: a path that there is not, a method that it does not have."""
    assert isinstance(error, HTTPException)
    status, detail = error.status_code, str(error.detail)
    if status == 400:  # a body that is not even text
        status, detail = 422, f"the body: {detail}; send JSON"
    elif status in (404, 405):
        place = f"{request.method} {request.url.path[:200]}"
        detail = f"{place}: {detail}; /openapi.json lists what there is"
    return answer(refusal(status, detail), error.headers)


async def _answer_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    detail = (
        f"{field}: {first['msg']}" if field else f"the body: {first['msg']}; send application/json"
    )
    problem = refusal(422, detail)
    return answer(problem.model_copy(update={"error": InputError.name, "field": field}))


async def _answer_unforeseen(_: Request, error: Exception) -> Response:
    return answer(problem_of(InternalError(f"{type(error).__name__}; the server's log says how")))
