"""The run that a command asks about: by folder, by id, or simply the newest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimaran.config import RunSection
from trimaran.errors import InputError
from trimaran.run.context import RunContext
from trimaran.run.directory import find_address
from trimaran.run.folder import CONFIG_NAME, open_run_folder
from trimaran.store import read_store
from trimaran.trust.access import Trust
from trimaran.types import Caller

RUNS = RunSection().folder
LATEST = "latest"
NUM_KNOWN = 8
"""Names that an error lists."""


@dataclass(frozen=True, slots=True)
class FoundRun:
    """Example: find_run("addition-20261120-120000").folder, or find_run(None).name"""

    weight_sync: str | None
    """host:port; None where it is not recorded."""
    folder: Path
    prove_timeout: float
    trust: Trust

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def caller(self) -> Caller:
        """The caller of an operator's question, who has no epoch."""
        return Caller(RunContext.in_folder(self.folder).run_id, 0)


def find_run(text: str | None) -> FoundRun:
    """`text`: a run's folder, its id (a folder in runs/), or None or `latest` for the one started last.

    Raises InputError that names the runs known here.
    """
    folder, config = open_run_folder(str(find_folder(text)))
    run = RunContext.in_folder(folder)
    address = config.endpoints.weight_sync or asyncio.run(_recorded_address(run))
    return FoundRun(address or None, folder, config.weight_sync.prove_timeout, run.trust)


def find_folder(text: str | None) -> Path:
    """As `find_run`, for who asks none of its processes. Raises InputError."""
    text = None if text == LATEST else text
    folder = next(iter(_folders()), None) if text is None else folder_of(text)
    if folder is None:
        raise InputError(f"{text}: not a run; {_known_runs()}" if text else _known_runs())
    return folder


async def _recorded_address(run: RunContext) -> str:
    """The address that weight sync has recorded; empty where it has none."""
    store = await read_store(run.store_url)
    if store is None:
        return ""
    try:
        return await find_address(store, run.run_id, "weight-sync")
    finally:
        await store.close()


def split_target(target: str | None) -> tuple[FoundRun, str]:
    """RUN, RUN/REPLICA or REPLICA (of the newest run)."""
    if target in (None, LATEST) or folder_of(target):
        return find_run(target), ""
    run, slash, replica = target.rpartition("/")
    return find_run(run if slash else None), replica


def folder_of(text: str) -> Path | None:
    candidates = (Path(text), RUNS / text)
    return next((path for path in candidates if (path / CONFIG_NAME).is_file()), None)


def shorten(names: Sequence[str]) -> str:
    """The first of names that are sorted newest first, and how many more there are."""
    more = len(names) - NUM_KNOWN
    return ", ".join(names[:NUM_KNOWN]) + (f" and {more} older" if more > 0 else "")


def _folders() -> list[Path]:
    """In runs/, the one that was started last first."""
    configs = sorted(RUNS.glob(f"*/{CONFIG_NAME}"), key=lambda path: -path.stat().st_mtime)
    return [path.parent for path in configs]


def _known_runs() -> str:
    names = [folder.name for folder in _folders()]
    if not names:
        return f"there are no runs in {RUNS.resolve()}; give a run's folder"
    return f"known in {RUNS.resolve()}: {shorten(names)}"
