"""The manager that a command asks, and the run of it that a word names."""

from __future__ import annotations

import sys

from commands.cli.manage.find_run import LATEST, shorten
from trimaran.clients.run_sync import RunClient
from trimaran.errors import InputError, NotFoundError
from trimaran.run.runs import Run

TIMEOUT_SECONDS = 10.0
"""The deadline of one question."""
PATIENCE_SECONDS = 4.0
"""How long a command waits where nothing listens: a restarted manager needs so long."""


def open_client(address: str | None, patience: float = PATIENCE_SECONDS) -> RunClient:
    """A client of the manager at `address`, else at TRIMARAN_MANAGER, else of this machine's. It says on stderr
    when the answer takes its time."""

    def tell(address: str) -> None:
        print(f"waiting for the manager at {address} ...", file=sys.stderr, flush=True)

    return RunClient(address, timeout=TIMEOUT_SECONDS, patience=patience, on_wait=tell)


def find_managed(client: RunClient, text: str) -> Run:
    """By its id, the unique beginning of one, or `latest`. Raises InputError that names candidates."""
    if text != LATEST:
        try:
            return client.get_run(text)
        except NotFoundError:
            pass  # perhaps the beginning of an id
    runs = client.list_runs()
    if text == LATEST:
        if (newest := next(runs, None)) is None:
            raise InputError("there are no runs; queue one with: trimaran submit CONFIG")
        return newest
    known = list(runs)
    found = [run for run in known if run.run_id.startswith(text)]
    if len(found) == 1:
        return found[0]
    candidates = shorten([run.run_id for run in found or known]) or "there are none"
    problem = "begins several runs" if found else "not a run of this manager"
    raise InputError(f"{text}: {problem}: {candidates}")
