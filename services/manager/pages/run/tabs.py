"""What stands around each page of a run: its state and the names of its other pages."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse

from services.manager.pages.frame import render
from services.manager.pages.session import Visitor

TABS = {
    "": "Curves",
    "samples": "Samples",
    "config": "Configuration",
    "processes": "Processes",
    "checkpoints": "Checkpoints",
    "events": "Events",
    "logs": "Logs",
    "ledger": "Ledger",
}
"""Path behind the run's own -> title."""


async def render_tab(
    request: Request,
    runs: Any,
    visitor: Visitor,
    run_id: str,
    tab: str,
    template: str = "",
    **values: Any,
) -> HTMLResponse:
    """The page `template`, or `run/TAB.html`, within the run's frame. Raises NotFoundError for an unknown run."""
    run = await runs.get(visitor.client, run_id)
    template = template or f"run/{tab or 'curves'}.html"
    return render(request, template, visitor=visitor, run=run, tab=tab, tabs=TABS, **values)
