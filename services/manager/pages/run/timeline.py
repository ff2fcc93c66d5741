"""The timeline of a run's processes as it grows, thinned to what a picture can show."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from services.manager.pages.route import page_router
from services.manager.pages.session import Visitor, visits
from services.manager.run_data.timeline import Span, Timeline

MOST_PIXELS = 1200
"""Into which a lane is divided, at most; what is narrower is drawn together."""
MOST_SPANS = 20_000
LANES = ("controller", "environment", "rollout", "reward", "trainer", "weight-sync")
"""From above, by the kind of process."""
Time = Annotated[float, Query(ge=0, le=1e12)]


def routes(runs: Any) -> APIRouter:
    router = page_router()

    @router.get("/runs/{run_id}/timeline")
    async def window(
        run_id: str,
        visitor: Annotated[Visitor, visits("GetRun")],
        seconds: Time = 600,
        until: Time = 0,
    ) -> Response:
        """`seconds` before `until`; of a run that goes on, before now."""
        run = await runs.get(visitor.client, run_id)
        if not until and run.state.has_processes:
            until = time.time()
        found = await runs.timeline(visitor.client, run_id, seconds, until)
        picture = await asyncio.to_thread(drawn, found)
        return JSONResponse(picture | {"grows": run.state.has_processes})

    return router


def drawn(timeline: Timeline) -> dict[str, Any]:
    """Each span as [lane, activity, start, length, first step, last step, share]: seconds since the window's
    start, and which share of a span that stands for several is busy."""
    found: defaultdict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        found[span.process, span.activity].append(span)
    lanes = sorted({process for process, _ in found}, key=_lane_key)
    activities = sorted({activity for _, activity in found})
    pixels = min(MOST_PIXELS, MOST_SPANS // max(len(lanes), 1))
    apart = (timeline.end - timeline.start) / pixels
    spans: list[list[float]] = []
    for (process, activity), own in sorted(found.items()):
        row = lanes.index(process), activities.index(activity)
        spans += [[*row, *_as_one(near, timeline.start)] for near in _together(own, apart)]
    return {
        "start": timeline.start,
        "end": timeline.end,
        "first": timeline.first,
        "lanes": lanes,
        "activities": activities,
        "spans": spans,
    }


def _together(spans: Sequence[Span], apart: float) -> list[list[Span]]:
    """Neighbours that are narrow, and nearer to each other than `apart` seconds, are one."""
    found: list[list[Span]] = []
    for span in sorted(spans, key=attrgetter("start")):
        is_narrow = span.end - span.start < apart
        if found and is_narrow and span.end - found[-1][0].start < apart:
            found[-1].append(span)
        else:
            found.append([span])
    return found


def _as_one(spans: Sequence[Span], origin: float) -> tuple[float, ...]:
    if len(spans) == 1:
        [(_, _, start, end, step)] = spans
        return round(start - origin, 3), round(end - start, 3), step, step, 1.0
    start, end = spans[0].start, max(span.end for span in spans)
    busy = sum(span.end - span.start for span in spans)
    share = min(busy / (end - start), 1.0) if end > start else 1.0
    steps = [span.step for span in spans]
    return round(start - origin, 3), round(end - start, 3), min(steps), max(steps), round(share, 2)


def _lane_key(process: str) -> tuple[int, str, int]:
    kind, _, index = process.rpartition("-")
    if not index.isdigit():
        kind, index = process, "0"
    return LANES.index(kind) if kind in LANES else len(LANES), kind, int(index)
