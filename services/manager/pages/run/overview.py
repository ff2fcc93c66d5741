"""The head of a run's pages, which is asked for again while it stands in a browser."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from services.manager.pages.frame import render
from services.manager.pages.route import page_router
from services.manager.pages.session import Visitor, visits


def routes(runs: Any) -> APIRouter:
    router = page_router()

    @router.get("/runs/{run_id}/head")
    async def head(
        request: Request, run_id: str, visitor: Annotated[Visitor, visits("GetRun")]
    ) -> Response:
        run = await runs.get(visitor.client, run_id)
        return render(request, "run/_head.html", visitor=visitor, run=run)

    return router
