"""Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}}.

A client of OpenAI's asks again after 408, 409, 429 and 5xx, and gives up after the others; the statuses are
chosen by that.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from trimaran.errors import (
    InputError,
    InternalError,
    LimitError,
    NotFoundError,
    StateError,
    TrimaranError,
    UnauthenticatedError,
)
from trimaran.wire.http_problems import problem_of

INVALID = "invalid_request_error"
REMEDY = "there are POST chat/completions and GET models; set the client to chat completions, not responses"
STATUSES = {
    InputError.name: (400, INVALID, None),
    UnauthenticatedError.name: (401, INVALID, "invalid_api_key"),
    NotFoundError.name: (404, INVALID, "not_found"),
    StateError.name: (410, INVALID, "episode_over"),
    LimitError.name: (429, "rate_limit_error", None),
}
"""Status, type and code, by our name of the error."""


def add_handlers(app: FastAPI) -> None:
    app.add_exception_handler(TrimaranError, _answer_ours)
    app.add_exception_handler(HTTPException, _answer_refused)
    app.add_exception_handler(Exception, _answer_unforeseen)


async def _answer_ours(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TrimaranError)
    problem = problem_of(error)
    status, kind, code = STATUSES.get(problem.error, (problem.status, "server_error", None))
    return _answer(status, problem.detail, kind, problem.field or None, code)


async def _answer_refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path[:200]}: {error.detail}; {REMEDY}"
    return _answer(error.status_code, text, INVALID, None, None)


async def _answer_unforeseen(_: Request, error: Exception) -> JSONResponse:
    text = f"{type(error).__name__}; the server's log says how"
    return await _answer_ours(_, InternalError(text))


def _answer(
    status: int, message: str, kind: str, param: str | None, code: str | None
) -> JSONResponse:
    tree = {"message": message, "type": kind, "param": param, "code": code}
    return JSONResponse({"error": tree}, status)
