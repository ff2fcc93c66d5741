"""How a page answers: with its headers, and an error as a page that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from services.manager.pages.frame import HEADERS, is_partial, render
from trimaran.errors import InputError, TrimaranError, UnauthenticatedError
from trimaran.wire.http_problems import problem_of


def page_router() -> APIRouter:
    """Its pages stand in no schema: /openapi.json describes the API."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


class PageRoute(APIRoute):
    """A route whose errors a person reads."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response = await handle(request)
            except UnauthenticatedError:
                response = _to_sign_in(request)
            except RequestValidationError as error:
                first = error.errors()[0]
                field = ".".join(map(str, first["loc"][1:]))
                response = _show(request, InputError(f"{field}: {first['msg']}"))
            except TrimaranError as error:
                response = _show(request, error)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return answer


def _show(request: Request, error: TrimaranError) -> Response:
    problem = problem_of(error)
    template = "_problem.html" if is_partial(request) else "problem.html"
    return render(request, template, status=problem.status, problem=problem.detail)


def _to_sign_in(request: Request) -> Response:
    """The address names the page to come back to, never a token."""
    if is_partial(request):
        return Response(headers={"HX-Redirect": "/sign-in"})
    here = f"{request.url.path}?{request.url.query}".rstrip("?")
    place = here if request.method == "GET" else "/runs"
    return RedirectResponse(f"/sign-in?to={quote(place)}", 303)
