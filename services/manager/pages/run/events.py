"""A run's events, newest first; new ones come by themselves."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from services.manager.pages.frame import is_partial, render
from services.manager.pages.route import page_router
from services.manager.pages.run.tabs import render_tab
from services.manager.pages.session import Visitor, visits
from trimaran.run.event_words import event_words
from trimaran.run.runs import EventKind, RunEvent

KINDS: dict[str, frozenset[EventKind]] = {
    "all": frozenset(),
    "steps": frozenset((EventKind.STEP,)),
    "validations": frozenset((EventKind.VALIDATION,)),
    "states": frozenset((EventKind.STATE, EventKind.HELD, EventKind.RELEASED, EventKind.FINISHED)),
    "processes": frozenset((EventKind.PROCESS, EventKind.REPLICA_LOST, EventKind.REPLICA_BACK)),
    "checkpoints": frozenset((EventKind.CHECKPOINT, EventKind.CHECKPOINT_FAILED)),
    "trouble": frozenset(
        (
            *(EventKind.SKIPPED, EventKind.REPLICA_LOST, EventKind.HELD, EventKind.INDIGESTIBLE),
            *(EventKind.NONFINITE, EventKind.CHECKPOINT_FAILED, EventKind.TAINTED),
        )
    ),
}
"""What a reader chooses, and the kinds that it stands for: all of them where it is empty."""
PAGE = 100
MOST_NEW = 500
"""Events that one answer adds to a page that follows."""
Number = Annotated[int, Query(ge=0, le=2**63 - 1)]


def routes(runs: Any) -> APIRouter:
    router = page_router()

    @router.get("/runs/{run_id}/events")
    async def page(
        request: Request,
        run_id: str,
        visitor: Annotated[Visitor, visits("WatchRun")],
        kind: str = "all",
        before: Number = 0,
        after: Annotated[int | None, Query(ge=0, le=2**63 - 1)] = None,
    ) -> Response:
        kind = kind if kind in KINDS else "all"
        values: dict[str, Any] = {"kind": kind, "kinds": KINDS}
        if is_partial(request) and after is not None:
            newest, found = await _behind(runs, visitor, run_id, after, kind)
            values |= {"rows": rows_of(found), "newest": newest, "older": 0}
            return render(request, "run/_events.html", **values)
        past = await runs.past_events(visitor.client, run_id, before, KINDS[kind], PAGE)
        newest = None if before else past.newest
        values |= {"rows": rows_of(past.events), "newest": newest, "older": past.older}
        if is_partial(request):
            return render(request, "run/_events.html", **values)
        return await render_tab(request, runs, visitor, run_id, "events", **values)

    return router


async def _behind(
    runs: Any, visitor: Visitor, run_id: str, after: int, kind: str
) -> tuple[int, list[RunEvent]]:
    """What came since: the last sequence number, and the events of the kind, newest first."""
    found: list[RunEvent] = []
    newest = after
    async with aclosing(runs.events(visitor.client, run_id, after, follow=False)) as events:
        async for event in events:
            newest = event.sequence
            if not KINDS[kind] or event.kind in KINDS[kind]:
                found.append(event)
            if newest - after >= MOST_NEW:
                break
    return newest, found[::-1]


def rows_of(events: Any) -> list[tuple[RunEvent, str]]:
    return [(event, event_words(event)) for event in events]
