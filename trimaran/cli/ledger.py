"""`trimaran ledger`: what became of a group, and whether the whole record is sound."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.controller.anchor import read_anchors
from services.controller.group_life import GroupLife, read_life
from services.controller.group_words import tell
from services.controller.ledger_check import Findings, check_ledger
from services.controller.payloads import PayloadStore, open_payloads
from trimaran.cli.find_run import find_run
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.launch.run_folder import open_run_folder
from trimaran.run_context import RunContext
from trimaran.store import Store, find_store


def ledger(options: argparse.Namespace) -> int:
    """Returns the exit code."""
    if options.question == "show":
        run, group = _which(options)
        return show(run, group, options.json)
    return verify(options.run, options.json)


def show(run: str | None, group: int, as_json: bool) -> int:
    """Raises InputError when there is no such run or group."""

    async def read() -> GroupLife:
        async with recorded(run) as record:
            return await read_life(record.store, record.payloads, record.run.run_id, group)

    life = asyncio.run(read())
    print(json.dumps(life.tree()) if as_json else "\n".join(tell(life)))
    return 0


def verify(run: str | None, as_json: bool) -> int:
    """1 when something is lost, altered or there twice."""

    async def check() -> Findings:
        async with recorded(run) as record:
            keeps_all = record.config.run.keep_payloads == "all"
            return await check_ledger(
                record.store,
                record.payloads,
                record.run.run_id,
                read_anchors(record.run.folder),
                keeps_all,
            )

    found = asyncio.run(check())
    print(json.dumps(found.tree()) if as_json else "\n".join(found.lines()))
    return 1 if found.faults else 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run has recorded, open for reading.

    Example:
        async with recorded("addition-20261120-120000") as record:
            await record.store.last(f"ledger/{record.run.run_id}")
    """

    run: RunContext
    config: RunConfig
    store: Store
    payloads: PayloadStore

    def kept_checkpoints(self) -> list[int]:
        """Their steps."""
        folders = (self.run.folder / "checkpoints").glob("step-*")
        numbers = (folder.name.removeprefix("step-") for folder in folders)
        return sorted(int(number) for number in numbers if number.isdecimal())


@asynccontextmanager
async def recorded(run: str | None) -> AsyncGenerator[Recorded]:
    """`run`: a folder or an id; None for the run started last. Raises InputError."""
    folder = find_run(run, None).folder
    assert folder  # without an address there is one
    _, config = open_run_folder(str(folder))
    context = RunContext.in_folder(Path(folder))
    store = await find_store(context.store_url)
    if store is None:
        raise InputError(f"{folder}: nothing was recorded (there is no {context.store_url})")
    payloads = open_payloads(config.run.payloads, folder, context.run_id)
    try:
        yield Recorded(context, config, store, payloads)
    finally:
        await payloads.close()
        await store.close()


def _which(options: argparse.Namespace) -> tuple[str | None, int]:
    """RUN and GROUP, of `show 17`, `show RUN 17` and `show RUN --group 17`."""
    run, group = options.run, options.number if options.group is None else options.group
    if group is None and run is not None and run.isdecimal():
        return None, int(run)
    if group is None:
        raise InputError("ledger show: give the group's number, such as --group 17")
    return run, group
