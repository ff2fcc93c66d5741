"""Who looks at a page: the API's token, kept in a cookie that no script reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import RedirectResponse, Response

from services.manager.http.routes import METHOD
from services.manager.pages.frame import render
from services.manager.pages.route import page_router
from trimaran.errors import ForbiddenError, UnauthenticatedError
from trimaran.trust.access import ClientIdentity, Role

SECONDS = 12 * 3600
"""How long a browser keeps the cookie."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks for a page, and which buttons the page has."""

    client: ClientIdentity
    may_change: bool
    """Whether this client can start and steer runs at this server."""
    has_token: bool


def visits(method: str) -> Any:
    """A dependency: the visitor, who may call the method of RunService that the page shows.

    It raises UnauthenticatedError and ForbiddenError; the latter also for a request that changes
    something and does not say which page it comes from. `Safety` compares that page's origin.

    Example: async def page(visitor: Annotated[Visitor, visits("GetRun")]) -> HTMLResponse: ...
    """

    def identify(request: Request) -> Visitor:
        return _visit(request, method)

    return Depends(identify)


def changes(method: str) -> Any:
    """The same for a method that changes runs. It raises ForbiddenError also where pages only read."""

    def identify(request: Request) -> Visitor:
        return visit_to_change(request, method)

    return Depends(identify)


def visit_to_change(request: Request, method: str) -> Visitor:
    """Raises as `changes`."""
    visitor = _visit(request, method)
    if not visitor.may_change:
        raise ForbiddenError(
            "these pages only read runs; `trimaran up` serves some that change them"
        )
    return visitor


def _visit(request: Request, method: str) -> Visitor:
    if request.method != "GET" and "origin" not in request.headers:
        raise ForbiddenError("origin: the request does not say which page it comes from")
    token = request.cookies.get(cookie_name(request), "")
    client = request.app.state.identify(METHOD.format(method), token)
    may_change = client.role.covers(Role.SUBMITTER) and not request.app.state.is_read_only
    return Visitor(client, may_change, bool(token))


def cookie_name(request: Request) -> str:
    """One for each port: a browser sends a host's cookies to all its ports."""
    return f"trimaran_{request.url.port or request.url.scheme}"


def routes() -> APIRouter:
    router = page_router()

    @router.get("/sign-in")
    async def sign_in_page(request: Request, to: str = "/runs") -> Response:
        return render(request, "sign_in.html", to=to, problem="")

    @router.post("/sign-in")
    async def sign_in(
        request: Request, token: Annotated[str, Form()], to: Annotated[str, Form()] = "/runs"
    ) -> Response:
        token = token.strip()
        try:
            request.app.state.identify(METHOD.format("ListRuns"), token)
        except UnauthenticatedError as error:
            return render(request, "sign_in.html", status=401, to=to, problem=str(error))
        response = RedirectResponse(_own_path(to), 303)
        safe = request.url.scheme == "https"
        limits: dict[str, Any] = {"httponly": True, "samesite": "lax", "secure": safe}
        response.set_cookie(cookie_name(request), token, SECONDS, **limits)
        return response

    @router.post("/sign-out")
    async def sign_out(request: Request, _: Annotated[Visitor, visits("ListRuns")]) -> Response:
        response = RedirectResponse("/sign-in", 303)
        response.delete_cookie(cookie_name(request))
        return response

    return router


def _own_path(text: str) -> str:
    """A page of ours, never another site's."""
    return text if text.startswith("/runs") else "/runs"
