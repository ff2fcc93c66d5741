"""`trimaran ledger`: what became of a group, and whether the whole record is sound."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from commands.cli.manage.find_run import LATEST, find_folder, folder_of
from commands.cli.manage.folder_client import FolderClient
from commands.cli.manage.managed import PATIENCE_SECONDS, find_managed, open_client
from commands.cli.plain import plain
from trimaran.clients.access import MANAGER_VARIABLE
from trimaran.errors import DeadlineError, InputError, UnreachableError
from trimaran.run.answers import LedgerAnswer

LOOK_SECONDS, VERIFY_SECONDS = 120.0, 1800.0
"""For the manager to look up a group, and to read a whole ledger."""


def show(options: argparse.Namespace) -> int:
    """The life of a group. Raises InputError when there is no such run or group."""
    run, group = _which(options)
    if _is_managed(run, options.manager):
        return _print(_ask_manager(run, group, options.manager), options.json)
    return _print(_ask_folder(run, group), options.json)


def verify(options: argparse.Namespace) -> int:
    """Returns 1 when something is lost, altered or there twice."""
    if _is_managed(options.run, options.manager):
        return _print(_ask_manager(options.run, None, options.manager), options.json)
    return _print(_ask_folder(options.run, None), options.json)


def _print(answer: LedgerAnswer, as_json: bool) -> int:
    print(json.dumps(answer.facts) if as_json else plain("\n".join(answer.lines)))
    return 0 if answer.sound else 1


def _ask_folder(run: str | None, group: int | None) -> LedgerAnswer:
    with FolderClient(find_folder(run)) as client:
        return client.get_ledger(client.run_id, group)


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


def _which(options: argparse.Namespace) -> tuple[str | None, int]:
    """RUN and GROUP, of `show 17` and `show RUN 17`."""
    run, group = options.run, options.group
    if group is None and run is not None and run.isdecimal():
        return None, int(run)
    if group is None:
        raise InputError("ledger show: give the group's number, such as 17")
    return run, group
