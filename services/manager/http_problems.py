"""Every error of the manager's HTTP is a problem document (RFC 9457), also those of the framework."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from trimaran.errors import (
    ForbiddenError,
    InputError,
    InternalError,
    LimitError,
    NotFoundError,
    TrimaranError,
)
from trimaran.status import status_of

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
CODES = {404: "NOT_FOUND", 405: "UNIMPLEMENTED"}
"""Of what the framework refuses."""
MEANINGS = {
    401: "No token, or one that nobody here knows.",
    403: "Your role, the owner of the run or the operator's settings do not allow it.",
    404: "There is no such run, or nothing of that name in it.",
    409: "The run's state does not allow it, or the request id stands for another run.",
    413: "The body is too long.",
    422: "A field is wrong; `field` names it.",
    429: "More than the operator allows; `detail` says of what.",
    500: "The manager failed; its log says how.",
    503: "The manager's store does not answer; try again.",
    504: "It took too long.",
}
FIELD = re.compile(r"(?:config: )?([a-z_][\w.\[\]-]*)(?: x [^:\n]*)?: ")
"""How our messages begin where they are about a field, or a product of some: the first is told."""
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


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the schema of a path."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": MEANINGS[status], "content": content} for status in statuses}


def add_handlers(app: FastAPI) -> None:
    def openapi() -> dict[str, Any]:
        schema = FastAPI.openapi(app)
        schema["components"]["schemas"]["Problem"] = Problem.model_json_schema()
        for path in schema["paths"].values():
            for operation in path.values():
                if "security" in operation:
                    operation["security"] = [{}, {"HTTPBearer": []}]  # as the operator has it
        return schema

    app.openapi = openapi
    app.add_exception_handler(TrimaranError, _answer_ours)
    app.add_exception_handler(HTTPException, _answer_frameworks)
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


def answer(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(problem.model_dump(exclude_defaults=True))
    return Response(body, problem.status, headers, media_type=MEDIA_TYPE)


async def _answer_ours(_: Request, error: Exception) -> Response:
    assert isinstance(error, TrimaranError)
    problem = problem_of(error)
    more = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}
    return answer(problem, more.get(problem.status))


async def _answer_frameworks(request: Request, error: Exception) -> Response:
    """A path that there is not, and a method that it does not have."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:  # a body that is not even text
        detail = f"the body: {error.detail}; send JSON"
        return answer(Problem(title="INVALID_ARGUMENT", status=422, detail=detail))
    code = CODES.get(error.status_code, "INTERNAL")
    place = f"{request.method} {request.url.path[:200]}"
    detail = f"{place}: {error.detail}; /openapi.json lists what there is"
    return answer(Problem(title=code, status=error.status_code, detail=detail), error.headers)


async def _answer_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    detail = f"{field}: {first['msg']}" if field else f"the body: {first['msg']}; send JSON"
    return answer(
        Problem(
            title="INVALID_ARGUMENT", status=422, detail=detail, error=InputError.name, field=field
        )
    )


async def _answer_unforeseen(_: Request, error: Exception) -> Response:
    text = f"{type(error).__name__}; the manager's log says how"
    return answer(problem_of(InternalError(text)))
