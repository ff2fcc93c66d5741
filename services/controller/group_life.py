"""The life of one group, from a run's ledger, while the run goes on and after it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any

from services.controller.ledger import read_records
from services.controller.records import Committed, Consumed, GroupRecord, Record, Replayed, encode
from trimaran.errors import InputError
from trimaran.run_context import RunContext
from trimaran.store import find_store


async def life_of(
    group: int, records: AsyncIterable[tuple[int, Record]]
) -> AsyncGenerator[dict[str, Any], None]:
    """The group's records as they were written; of the batch that it trained in, only the step."""
    step = 0
    async for _, record in records:
        if isinstance(record, GroupRecord) and record.group == group:
            yield encode(record)
        elif isinstance(record, Consumed) and group in dict(record.groups):
            step = record.step
            yield {"kind": "consumed", "step": step}
        elif isinstance(record, Committed | Replayed) and record.version.step == step:
            yield encode(record)


async def read_life(run: RunContext, group: int) -> list[dict[str, Any]]:
    """Raises InputError when the run has no record of the group.

    Example: (await read_life(RunContext.in_folder(folder), 17))[0]["kind"] == "issued"
    """
    store = await find_store(run.store_url)
    if store is None:
        raise InputError(f"{run.folder}: nothing was recorded (there is no {run.store_url})")
    try:
        life = [tree async for tree in life_of(group, read_records(store, run.run_id))]
    finally:
        await store.close()
    if not life:
        raise InputError(f"{run.folder}: its ledger knows no group {group}")
    return life
