"""A run's configuration: what differs from the defaults, or from another run's, or all of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, Response

from services.manager.pages.route import page_router
from services.manager.pages.run.config_rows import compare, config_rows
from services.manager.pages.run.tabs import render_tab
from services.manager.pages.session import Visitor, visits
from trimaran.config import dump_config, parse_recorded

OTHERS = 100
"""Runs to choose from for a comparison: the newest ones."""


def routes(runs: Any) -> APIRouter:
    router = page_router()

    @router.get("/runs/{run_id}/config")
    async def page(
        request: Request,
        run_id: str,
        visitor: Annotated[Visitor, visits("GetRun")],
        show: Literal["changed", "all"] = "changed",
        other: Annotated[str, Query(alias="with")] = "",
    ) -> Response:
        rows = config_rows(await runs.config(visitor.client, run_id))
        if other:
            rows = compare(rows, config_rows(await runs.config(visitor.client, other)))
        elif show == "changed":
            rows = [row for row in rows if row.differs]
        found, _ = await runs.list(visitor.client, (), "", OTHERS, "")
        others = [run.run_id for run in found if run.run_id != run_id]
        values: dict[str, Any] = {"rows": rows, "show": show, "other": other, "others": others}
        return await render_tab(request, runs, visitor, run_id, "config", **values)

    @router.get("/runs/{run_id}/config.yaml")
    async def as_yaml(run_id: str, visitor: Annotated[Visitor, visits("GetRun")]) -> Response:
        tree = await runs.config(visitor.client, run_id)
        text = dump_config(parse_recorded(tree, source=f"run {run_id}"))
        name = {"Content-Disposition": f'attachment; filename="{run_id}.yaml"'}
        return PlainTextResponse(text, headers=name, media_type="application/yaml")

    return router
