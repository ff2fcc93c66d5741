"""What the manager reads and writes in the stores of runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from services.manager.records import Managed
from services.manager.run_data.run_stores import RunStores
from trimaran.run.runs import (
    EventKind,
    Run,
    RunEvent,
    endpoints_key,
    event_from_tree,
    event_to_tree,
    events_stream,
    goal_key,
    launcher_lease,
    replicas_key,
    run_from_tree,
    run_key,
)

REPLICA = "rollout-"
RECENT = 50
"""Events among which the last one of a state is looked for."""


class RunLinks:
    """Example: await RunLinks(stores).tell(run)"""

    def __init__(self, stores: RunStores) -> None:
        self._stores = stores
        self._written: dict[str, Any] = {}

    async def launcher(self, run: Managed) -> str:
        """Which launcher has renewed its lease in time, as `holder_name` calls it; empty: none."""
        async with self._stores.of(run.store_url, make=True) as store:
            lease = await store.holder(launcher_lease(run.run_id))
        return lease.holder if lease else ""

    async def reported(self, run: Managed) -> tuple[Run | None, int]:
        """What its processes have written since it was started, and the record's version."""
        async with self._stores.of(run.store_url, make=True) as store:
            record = await store.get(run_key(run.run_id))
        if record is None or record.version <= run.seen:
            return None, run.seen
        return run_from_tree(record.value), record.version

    async def replicas(self, run: Managed) -> frozenset[int] | None:
        """Those that have a process; None where it is not known."""
        async with self._stores.of(run.store_url, make=True) as store:
            record = await store.get(endpoints_key(run.run_id))
        if record is None:
            return None
        names = (name for name in record.value if name.startswith(REPLICA))
        return frozenset(int(name.removeprefix(REPLICA)) for name in names)

    async def tell(self, run: Managed, again: bool = False) -> None:
        """Writes what is wanted of the run's processes. `again`: also where it was written before."""
        wanted = {
            goal_key(run.run_id): {"goal": run.goal.value},
            replicas_key(run.run_id): wanted_replicas(run),
        }
        if self._written.get(run.run_id) == wanted and not again:
            return
        async with self._stores.of(run.store_url, make=True) as store:
            for key, value in wanted.items():
                await store.put(key, value)
        self._written[run.run_id] = wanted

    async def say_once(self, run: Managed) -> None:
        """An event for the state, unless the last event says it. A launcher's words about processes
        may come behind it."""
        kind = EventKind.FINISHED if run.state.has_ended else EventKind.STATE
        async with self._stores.of(run.store_url, make=True) as store:
            last = await store.last(events_stream(run.run_id))
            found = await store.read(events_stream(run.run_id), max(last - RECENT, 0))
        for sequence, tree in reversed(found):
            event = event_from_tree(sequence, tree)
            if event.kind is EventKind.PROCESS:
                continue
            if event.run.state is run.state and event.kind is kind:
                return
            break
        await self.say(run, kind, run.words)

    async def say(self, run: Managed, kind: EventKind, text: str) -> None:
        event = RunEvent(0, kind, run.view, {}, text, time.time())
        async with self._stores.of(run.store_url, make=True) as store:
            await store.extend(events_stream(run.run_id), [event_to_tree(event)])

    def forget(self, run: Managed) -> None:
        self._written.pop(run.run_id, None)


def wanted_replicas(run: Managed) -> Mapping[str, Any]:
    """How many replicas the run shall have, and the devices of each: none have numbers on a CPU, and
    of those that Ray gives the name says the host."""
    staying = [index for index in sorted(run.grant.replicas) if index not in run.leaving]
    is_cpu = run.replica.kind == "cpu"
    devices = {
        str(index): [
            device.name
            for device in run.grant.replicas[index]
            if not (is_cpu and device.is_numbered)
        ]
        for index in staying
    }
    return {"wanted": len(staying), "devices": devices}
