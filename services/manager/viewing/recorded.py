"""A run as its own files tell of it, in the form in which its manager would know it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.manager.records import Managed
from services.manager.scheduling.pools import Grant, Need, PoolDevice
from trimaran.run.context import RunContext
from trimaran.run.runs import Run, RunState

LAPSE_SECONDS = 15.0
"""For a launcher to take its lease, or to renew one that has lapsed; then it is taken for dead."""
NO_NEED, SOME_NEED = Need("cpu", 0), Need("cuda", 0)
"""Nobody shares devices out here. Of what kind those are that a run counts is not recorded."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What there is of a run. Example: managed(Recorded(context, None, {}, 0.0, 0.0, 0.0), 0.0)"""

    context: RunContext
    run: Run | None
    """As its processes report it; None before they have."""
    config: Mapping[str, Any]
    began_at: float
    """When its launcher was started last; unix seconds, as the two below."""
    alive_at: float
    """When that was last known to live."""
    changed_at: float
    """When something of the run was last written."""


def managed(recorded: Recorded, now: float) -> Managed:
    """A run that its launcher has left under way has failed: nobody will say so in its store."""
    context, began_at = recorded.context, recorded.began_at
    run = recorded.run or Run(context.run_id, RunState.STARTING, 0, 0, created_at=began_at)
    is_left = run.state.has_processes and now - recorded.alive_at > LAPSE_SECONDS
    goes_on = run.state.has_processes and not is_left
    granted, devices = (run.replicas.granted, run.devices) if goes_on else (0, 0)
    shown: dict[str, Any] = {
        name: getattr(run, name) for name in Run.__slots__ if name in Managed.__slots__
    }
    shown |= {"run_id": context.run_id, "folder": str(context.folder)}  # it may have been moved
    found = Managed(
        **shown,
        request_id="",
        store_url=context.store_url,
        config=recorded.config,
        trainer=SOME_NEED,
        replica=NO_NEED,
        min_replicas=run.replicas.min,
        max_replicas=run.replicas.max,
        queued_at=run.created_at,
        grant=Grant(
            tuple(PoolDevice("", str(number)) for number in range(devices)),
            dict.fromkeys(range(granted), ()),
        ),
    )
    if not is_left:
        return found
    return replace(
        found,
        state=RunState.FAILED,
        held="",
        error="its launcher has ended, and the run had not",
        remedy=f"trimaran train --resume {found.folder} goes on with it, where no manager does",
        ended_at=recorded.changed_at,
    )


def unreadable(context: RunContext, error: str) -> Managed:
    """A run of which nothing is known but why."""
    run = Run(context.run_id, RunState.UNKNOWN, 0, 0, error=error)
    return managed(Recorded(context, run, {}, 0.0, 0.0, 0.0), 0.0)
