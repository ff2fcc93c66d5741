"""All pages of a server, and the files that they load."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import RedirectResponse
from starlette.staticfiles import StaticFiles

from services.manager.pages import session
from services.manager.pages.route import page_router
from services.manager.pages.run import (
    checkpoints,
    config,
    curves,
    events,
    logs,
    overview,
    processes,
    timeline,
)
from services.manager.pages.runs import steer, submit, table
from services.manager.pages.samples import group, ledger, listing


def add_pages(app: FastAPI, runs: Any, *, is_read_only: bool = False) -> None:
    """`runs`: what `make_app` was given. Who asks is identified as by the API."""
    app.state.is_read_only = is_read_only
    home = page_router()
    home.get("/")(lambda: RedirectResponse("/runs", 303))
    for router in (
        home,
        session.routes(),
        table.routes(runs),
        submit.routes(runs),  # before a run's page, of whose path its own is a case
        steer.routes(runs),
        overview.routes(runs),
        config.routes(runs),
        checkpoints.routes(runs),
        processes.routes(runs),
        timeline.routes(runs),
        curves.routes(runs),
        events.routes(runs),
        listing.routes(runs),
        group.routes(runs),
        ledger.routes(runs),
        logs.routes(runs),
    ):
        app.include_router(router)
    app.mount("/static", StaticFiles(packages=[("services.manager.pages", "static")]), "static")
