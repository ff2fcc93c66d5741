"""The table of runs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from services.manager.pages.frame import is_partial, render
from services.manager.pages.route import page_router
from services.manager.pages.session import Visitor, visits


def routes(runs: Any) -> APIRouter:
    router = page_router()

    @router.get("/runs")
    async def table(request: Request, visitor: Annotated[Visitor, visits("ListRuns")]) -> Response:
        found, _ = await runs.list(visitor.client, (), "", 100, "")
        template = "runs/_rows.html" if is_partial(request) else "runs/table.html"
        return render(request, template, visitor=visitor, runs=found)

    return router
