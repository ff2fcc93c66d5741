"""The curves of a run, laid over those of others."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from services.manager.pages.route import page_router
from services.manager.pages.run.series import SeriesShelf, Wish
from services.manager.pages.run.tabs import render_tab
from services.manager.pages.session import Visitor, visits

MOST_OTHERS = 8
MOST_CHARTS = 100
MOST_STEP = 2**31 - 1

Names = Annotated[list[str], Query(max_length=MOST_CHARTS)]
Step = Annotated[int, Query(ge=0, le=MOST_STEP)]


def routes(runs: Any) -> APIRouter:
    router, shelf = page_router(), SeriesShelf()

    @router.get("/runs/{run_id}")
    async def curves(
        request: Request,
        run_id: str,
        visitor: Annotated[Visitor, visits("GetRun")],
        others: Annotated[list[str], Query(alias="with", max_length=MOST_OTHERS + 1)] = [],  # noqa: B006
        x: str = "step",
    ) -> Response:
        """The address has what is shown, so that it can be passed on."""
        found, _ = await runs.list(visitor.client, (), "", 100, "")
        chosen = [name for name in dict.fromkeys(others) if name not in ("", run_id)]
        values = {"others": chosen[:MOST_OTHERS], "known": found, "by": x, "most": MOST_OTHERS}
        return await render_tab(request, runs, visitor, run_id, "", **values)

    @router.get("/runs/{run_id}/series")
    async def series(
        run_id: str,
        visitor: Annotated[Visitor, visits("WatchRun")],
        chart: Names = [],  # noqa: B006
        first: Annotated[Step, Query(alias="from")] = 0,
        last: Annotated[Step, Query(alias="to")] = MOST_STEP,
        bands: bool = True,
        since: Annotated[str, Query(max_length=200)] = "",
    ) -> Response:
        run = await runs.get(visitor.client, run_id)
        read = partial(runs.metric_rows, visitor.client, run_id)
        wish = Wish(chart, first, last, bands, since)
        answer = await shelf.of(run).answer(read, wish)
        answer["is_over"] = run.state.has_ended
        return Response(await asyncio.to_thread(json.dumps, answer), media_type="application/json")

    return router
