"""Calls for services that a container engine starts: a record in the manager's store for each run that has
devices. Who joins reads them (`commands/launch/joining/joining.py`)."""

from __future__ import annotations

from collections.abc import Iterable

from services.manager.records import Managed
from trimaran.run.runs import call_key
from trimaran.store import Store, records


class ServiceCalls:
    """Example: await ServiceCalls(store).follow(records.all())"""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._made: set[str] | None = None
        """Run ids; None before we have looked which an earlier manager made."""

    async def follow(self, runs: Iterable[Managed]) -> None:
        """Writes what is missing, and removes what no run wants any more. Raises UnavailableError; it
        may be done again."""
        if self._made is None:
            prefix = call_key()
            self._made = {key.removeprefix(prefix) async for key, _ in records(self._store, prefix)}
        wanted = {run.run_id: run for run in runs if run.state.has_processes and not run.is_deleted}
        for run_id in sorted(self._made - wanted.keys()):
            await self._store.delete(call_key(run_id))
            self._made.discard(run_id)
        for run_id in sorted(wanted.keys() - self._made):
            await self._store.put(call_key(run_id), {"since": wanted[run_id].queued_at})
            self._made.add(run_id)
