"""The processes of a run: which answer, what they hold, and their timeline."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from services.manager.pages.frame import render
from services.manager.pages.route import page_router
from services.manager.pages.run.events import KINDS, rows_of
from services.manager.pages.run.process_rows import ask_all
from services.manager.pages.run.tabs import render_tab
from services.manager.pages.session import Visitor, visits

EVENTS = 8
"""Deaths, starts and the like, the last ones."""


def routes(runs: Any) -> APIRouter:
    router = page_router()

    @router.get("/runs/{run_id}/processes")
    async def page(
        request: Request, run_id: str, visitor: Annotated[Visitor, visits("GetRun")]
    ) -> Response:
        """It asks for the rows itself, so that a process that does not answer holds up nothing else."""
        kinds = KINDS["processes"]
        past = await runs.past_events(visitor.client, run_id, kinds=kinds, limit=EVENTS)
        values: dict[str, Any] = {"rows": rows_of(past.events), "newest": None, "older": 0}
        return await render_tab(request, runs, visitor, run_id, "processes", kind="", **values)

    @router.get("/runs/{run_id}/processes/rows")
    async def rows(
        request: Request, run_id: str, visitor: Annotated[Visitor, visits("GetRun")]
    ) -> Response:
        run = await runs.get(visitor.client, run_id)
        weights = await runs.weights(visitor.client, run_id)
        logs = await runs.log_names(visitor.client, run_id)
        found = await ask_all(runs, visitor.client, run_id, weights)
        values: dict[str, Any] = {"rows": found, "live": weights.live, "logs": logs, "run": run}
        return render(request, "run/_processes.html", **values)

    return router
