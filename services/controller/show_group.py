"""The life of one group, from a run's ledger, one record a line.

    python -m services.controller.show_group runs/addition-20261120-120000 17

Works while the run goes on and after it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from services.controller.ledger import read_records
from services.controller.records import Committed, Consumed, GroupRecord, Record, encode
from trimaran.errors import InputError, TrimaranError
from trimaran.store import SqliteStore


def life_of(group: int, records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """The group's records as they were written; of the batch that it trained in, only the step."""
    step = 0
    for record in records:
        if isinstance(record, GroupRecord) and record.group == group:
            yield encode(record)
        elif isinstance(record, Consumed) and group in dict(record.groups):
            step = record.step
            yield {"kind": "consumed", "step": step}
        elif isinstance(record, Committed) and record.version.step == step:
            yield encode(record)


def show(run_folder: Path, group: int) -> list[str]:
    """One line of JSON a record. Raises InputError when there is no such run or group."""
    path = run_folder / "store.sqlite"
    if not path.is_file():
        raise InputError(f"{run_folder}: is not a run folder (it holds no {path.name})")
    store = SqliteStore(path)
    try:
        rows = read_records(store, run_folder.resolve().name)
        lines = [json.dumps(tree) for tree in life_of(group, (record for _, record in rows))]
    finally:
        store.close()
    if not lines:
        raise InputError(f"{run_folder}: its ledger knows no group {group}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m services.controller.show_group")
    parser.add_argument("run_folder", type=Path, metavar="RUN")
    parser.add_argument("group", type=int, metavar="GROUP", help="its number in prompt order")
    options = parser.parse_args()
    try:
        for line in show(options.run_folder, options.group):
            print(line)
    except TrimaranError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
