"""`trimaran ledger`: what became of a group, and whether the whole record is sound."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from commands.cli.manage.find_run import LATEST, find_folder, folder_of
from commands.cli.manage.managed import PATIENCE_SECONDS, find_managed, open_client
from commands.cli.plain import plain
from trimaran.clients.access import MANAGER_VARIABLE
from trimaran.config import RunConfig
from trimaran.errors import DeadlineError, InputError, UnreachableError
from trimaran.host.places import Place
from trimaran.ledger.anchor import read_anchors
from trimaran.ledger.check import check_ledger
from trimaran.ledger.group_life import read_life
from trimaran.ledger.group_words import tell
from trimaran.ledger.payloads.files import Payloads, open_payloads
from trimaran.run.answers import LedgerAnswer
from trimaran.run.context import RunContext
from trimaran.run.folder import open_run_folder
from trimaran.run.place import run_place, saved_states
from trimaran.store import Store, read_store

LOOK_SECONDS, VERIFY_SECONDS = 120.0, 1800.0
"""For the manager to look up a group, and to read a whole ledger."""


def show(options: argparse.Namespace) -> int:
    """The life of a group. Raises InputError when there is no such run or group."""
    run, group = _which(options)
    if _is_managed(run, options.manager):
        return _print(_ask_manager(run, group, options.manager), options.json)
    return _print(asyncio.run(_show(run, group)), options.json)


def verify(options: argparse.Namespace) -> int:
    """Returns 1 when something is lost, altered or there twice."""
    if _is_managed(options.run, options.manager):
        return _print(_ask_manager(options.run, None, options.manager), options.json)
    return _print(asyncio.run(_verify(options.run)), options.json)


def _print(answer: LedgerAnswer, as_json: bool) -> int:
    print(json.dumps(answer.facts) if as_json else plain("\n".join(answer.lines)))
    return 0 if answer.sound else 1


async def _show(run: str | None, group: int) -> LedgerAnswer:
    async with recorded(run) as record:
        life = await read_life(record.store, record.payloads, record.run.run_id, group)
    return LedgerAnswer(tuple(tell(life)), life.tree())


async def _verify(run: str | None) -> LedgerAnswer:
    async with recorded(run) as record:
        anchors = read_anchors(record.run.folder, record.place)
        keeps_all = record.config.run.keep_payloads == "all"
        found = await check_ledger(
            record.store, record.payloads, record.run.run_id, anchors, keeps_all
        )
    return LedgerAnswer(tuple(found.lines()), found.tree(), sound=not found.faults)


def _is_managed(run: str | None, manager: str | None) -> bool:
    """Whether a manager is to be asked: one that is named, or this machine's where no folder here is
    the run's."""
    if run is not None and folder_of(run) and Path(run).is_dir():
        return False
    if manager or os.environ.get(MANAGER_VARIABLE):
        return True
    return run not in (None, LATEST) and folder_of(run) is None


def _ask_manager(run: str | None, group: int | None, manager: str | None) -> LedgerAnswer:
    named = manager or os.environ.get(MANAGER_VARIABLE)
    timeout = LOOK_SECONDS if group is not None else VERIFY_SECONDS
    try:
        with open_client(manager, PATIENCE_SECONDS if named else 0.0) as client:
            found = find_managed(client, run or LATEST)
            try:
                return client.get_ledger(found.run_id, group, timeout=timeout)
            except DeadlineError:
                raise DeadlineError(
                    f"{found.run_id}: its manager has not read it within {timeout:g} s; on the manager's"
                    f" machine, run: trimaran ledger {'verify' if group is None else 'show'}"
                    f" {found.folder}{'' if group is None else f' {group}'}"
                ) from None
    except UnreachableError as error:
        if named:
            raise
        try:
            find_folder(run)
        except InputError as unknown:
            raise InputError(f"{unknown}\n{error}") from None
        raise


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
        return sorted(state["step"] for _, state in saved_states(self.run.folder, self.place))

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


def _which(options: argparse.Namespace) -> tuple[str | None, int]:
    """RUN and GROUP, of `show 17` and `show RUN 17`."""
    run, group = options.run, options.group
    if group is None and run is not None and run.isdecimal():
        return None, int(run)
    if group is None:
        raise InputError("ledger show: give the group's number, such as 17")
    return run, group
