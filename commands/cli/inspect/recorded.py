"""A run's record, open for who goes through it: its store and payloads, and what it was given."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from commands.cli.manage.find_run import find_folder
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.host.places import Place
from trimaran.ledger.payloads.files import Payloads, open_payloads
from trimaran.run.context import RunContext
from trimaran.run.folder import open_run_folder
from trimaran.run.place import run_place, saved_states
from trimaran.store import Store, read_store


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
    payloads: Payloads

    def kept_checkpoints(self) -> list[int]:
        """Their steps."""
        return sorted(saved.tree["step"] for saved in saved_states(self.run.folder, self.place))

    @property
    def place(self) -> Place | None:
        """The run's own, where `run.checkpoints` names one."""
        return run_place(self.config, self.run.run_id)


@asynccontextmanager
async def recorded(run: str | None) -> AsyncGenerator[Recorded]:
    """`run`: a folder or an id; None for the run started last. Raises InputError."""
    folder, config = open_run_folder(str(find_folder(run)))
    context = RunContext.in_folder(folder)
    store = await read_store(context.store_url)
    if store is None:
        raise InputError(f"{folder}: nothing was recorded (there is no {context.store_url})")
    payloads = open_payloads(config.run.payloads, folder, context.run_id)
    try:
        yield Recorded(context, config, store, payloads)
    finally:
        await payloads.close()
        await store.close()
