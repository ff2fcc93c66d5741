"""The table of runs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from services.manager.pages.frame import is_partial, render
from services.manager.pages.route import page_router
from services.manager.pages.runs.query import COLUMNS, TableQuery
from services.manager.pages.session import Visitor, visits
from services.manager.reading import MAX_PAGE
from trimaran.run.runs import Run, RunState
from trimaran.trust.access import ClientIdentity


def routes(runs: Any) -> APIRouter:
    router = page_router()

    @router.get("/runs")
    async def table(
        request: Request,
        query: Annotated[TableQuery, Query()],
        visitor: Annotated[Visitor, visits("ListRuns")],
    ) -> Response:
        known = await _read_all(runs, visitor.client)
        chosen = query.choose(known)
        return render(
            request,
            "runs/_table.html" if is_partial(request) else "runs/table.html",
            headers={"HX-Replace-Url": query.address},
            visitor=visitor,
            query=query,
            columns=COLUMNS,
            states=[state for state in RunState if state is not RunState.UNKNOWN],
            owners=sorted({run.owner for run in known if run.owner}),
            runs=chosen[: query.rows],
            count=len(chosen),
        )

    return router


async def _read_all(runs: Any, client: ClientIdentity) -> list[Run]:
    """Every run that the client may see, newest first."""
    found, token = await runs.list(client, (), "", MAX_PAGE, "")
    while token:
        page, token = await runs.list(client, (), "", MAX_PAGE, token)
        found += page
    return found
