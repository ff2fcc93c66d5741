"""The life of one group, from a run's ledger, while the run goes on and after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from services.controller.ledger import read_records
from services.controller.records import Committed, Consumed, GroupRecord, Record, Replayed, encode
from trimaran.errors import InputError
from trimaran.store import STORE_NAME, find_store


def life_of(group: int, records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """The group's records as they were written; of the batch that it trained in, only the step."""
    step = 0
    for record in records:
        if isinstance(record, GroupRecord) and record.group == group:
            yield encode(record)
        elif isinstance(record, Consumed) and group in dict(record.groups):
            step = record.step
            yield {"kind": "consumed", "step": step}
        elif isinstance(record, Committed | Replayed) and record.version.step == step:
            yield encode(record)


def read_life(run_folder: Path, group: int) -> list[dict[str, Any]]:
    """Raises InputError when the run has no record of the group.

    Example: read_life(Path("runs/addition-20261120-120000"), 17)[0]["kind"] == "issued"
    """
    store = find_store(run_folder)
    if store is None:
        raise InputError(f"{run_folder}: nothing was recorded (there is no {STORE_NAME})")
    try:
        records = read_records(store, run_folder.resolve().name)
        life = list(life_of(group, (record for _, record in records)))
    finally:
        store.close()
    if not life:
        raise InputError(f"{run_folder}: its ledger knows no group {group}")
    return life
