"""Every error of a reward server is a Problem, also those that the framework finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from services.reward.plugins.contract import Problem

REASON_LENGTH = 500
PROBLEMS = {
    401: "Wrong or missing bearer token.",
    408: "The request did not arrive in time.",
    413: "Too many samples, bytes or tokens.",
    422: "Not a request of this contract.",
    500: "The server failed; its log says how.",
    503: "Overloaded; Retry-After says when to come back.",
}


def add_handlers(app: FastAPI) -> None:
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)


def clean(text: str) -> str:
    """Short, never empty, and without the lone surrogates that JSON cannot hold."""
    return text[:REASON_LENGTH].encode("utf-8", "replace").decode() or "no reason given"


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    schemas: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        schemas |= problem_schema(status, PROBLEMS[status])
    return schemas


def problem_schema(status: int, description: str) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem, "description": description}}


def _problem(status: int, error: str, headers: Mapping[str, str] | None = None) -> Response:
    body = Problem(error=clean(error)).model_dump_json()
    return Response(body, status, headers, media_type="application/json")


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text, place = error.detail, request.url.path[:100]
    if error.status_code == 404:
        text = f"{place}: no such path; there are /v1/score, /v1/info, /v1/health, /get_reward"
    elif error.status_code == 405:
        text = f"{request.method} {place}: use {(error.headers or {}).get('Allow', 'another')}"
    return _problem(error.status_code, text, error.headers)


async def _answer_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    lines = [_describe(fault["loc"][1:], fault["msg"]) for fault in faults[:3]]
    too_many = any(
        fault["type"] == "too_long" and fault["loc"][1:] in (("samples",), ("query",))
        for fault in faults
    )
    return _problem(413 if too_many else 422, "; ".join(lines))


def _describe(place: Sequence[str | int], message: str) -> str:
    if not place:
        return "the body is not a JSON object sent as application/json"
    return f"{'.'.join(map(str, place))}: {message}"
