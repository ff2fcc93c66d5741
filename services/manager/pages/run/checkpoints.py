"""What a run has saved: the checkpoints that lie there, and those that were removed since."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from services.manager.pages.frame import is_partial, render
from services.manager.pages.route import page_router
from services.manager.pages.run.tabs import render_tab
from services.manager.pages.session import Visitor, visits

MOST = 500
"""The newest ones are shown."""


def routes(runs: Any) -> APIRouter:
    router = page_router()

    @router.get("/runs/{run_id}/checkpoints")
    async def page(
        request: Request, run_id: str, visitor: Annotated[Visitor, visits("ListCheckpoints")]
    ) -> Response:
        saved = await runs.checkpoints(visitor.client, run_id)
        scores = [each.score for each in saved if each.score is not None]
        values: dict[str, Any] = {
            "checkpoints": list(reversed(saved))[:MOST],
            "best": max(scores, default=None),
        }
        if is_partial(request):
            return render(request, "run/_checkpoints.html", **values)
        return await render_tab(request, runs, visitor, run_id, "checkpoints", **values)

    return router
