"""`trimaran ledger show`: what became of a group, and why it was reissued."""

from __future__ import annotations

import asyncio
import json

from services.controller.group_life import read_life
from trimaran.cli.find_run import find_run
from trimaran.run_context import RunContext


def show_group(run: str | None, group: int) -> int:
    """One record a line, as JSON. Raises InputError when there is no such run or group."""
    folder = find_run(run, None).folder
    assert folder  # without an address there is one
    for record in asyncio.run(read_life(RunContext.in_folder(folder), group)):
        print(json.dumps(record))
    return 0
