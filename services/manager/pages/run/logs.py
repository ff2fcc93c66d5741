"""The logs of a run's processes, which follow while they stand in a browser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, Response

from services.manager.pages.frame import is_partial, render
from services.manager.pages.route import page_router
from services.manager.pages.run.tabs import render_tab
from services.manager.pages.session import Visitor, visits
from services.manager.run_data.log_files import LogLines
from trimaran.run.launchers import LOG_NAME

LINES = (200, 1000, 5000)
"""How many of the last lines a reader may ask for."""
DOWNLOADED = 10_000
LAUNCHER = Path(LOG_NAME).stem
LEVEL = re.compile(r"\b(WARN|WARNING|ERROR|CRITICAL|FATAL)\b")
LEVEL_WITHIN = 120
"""Characters at a line's beginning among which its level stands."""
LEVELS = {"WARN": "warn", "WARNING": "warn"}


def routes(runs: Any) -> APIRouter:
    router = page_router()

    @router.get("/runs/{run_id}/logs")
    async def page(
        request: Request,
        run_id: str,
        visitor: Annotated[Visitor, visits("GetLogs")],
        process: str = "",
        lines: int = LINES[0],
        after: Annotated[int | None, Query(ge=0, le=2**63 - 1)] = None,
    ) -> Response:
        """A part of it is what came behind the position `after`."""
        lines = lines if lines in LINES else LINES[0]
        names = await runs.log_names(visitor.client, run_id)
        process = process or _usual(names)
        found = LogLines([], 0)
        if process:
            found = await _read(runs, visitor, run_id, process, lines, after)
        values: dict[str, Any] = {
            "process": process,
            "lines": [(line, level_of(line)) for line in found.lines],
            "position": found.position,
        }
        if is_partial(request):
            return render(request, "run/_logs.html", **values)
        values |= {"names": names, "num_lines": lines, "choices": LINES}
        return await render_tab(request, runs, visitor, run_id, "logs", **values)

    @router.get("/runs/{run_id}/logs/{process}.log")
    async def download(
        run_id: str, process: str, visitor: Annotated[Visitor, visits("GetLogs")]
    ) -> Response:
        found = await _read(runs, visitor, run_id, process, DOWNLOADED, None)
        name = {"Content-Disposition": f'attachment; filename="{run_id}-{process}.log"'}
        return PlainTextResponse("".join(f"{line}\n" for line in found.lines), headers=name)

    return router


def level_of(line: str) -> str:
    """`warn`, `bad`, or nothing. Example: level_of("2026-11-28 03:22:48 reward ERROR x: y") == "bad" """
    found = LEVEL.search(line, 0, LEVEL_WITHIN)
    return LEVELS.get(found[1], "bad") if found else ""


def _usual(names: Sequence[str]) -> str:
    """The log that is shown unless one is named; empty where there is none yet. Only runs of a manager
    have a launcher's."""
    return LAUNCHER if LAUNCHER in names else next(iter(names), "")


async def _read(
    runs: Any, visitor: Visitor, run_id: str, process: str, lines: int, after: int | None
) -> LogLines:
    parts = runs.logs(visitor.client, run_id, process, lines, follow=False, after=after)
    async with aclosing(parts):
        return await anext(parts)
