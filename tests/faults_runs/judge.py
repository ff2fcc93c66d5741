"""The oracle: what is wrong with a run that has ended, and with the place where it was."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults_runs.audit import audit
from tests.faults_runs.replay import replay
from tests.faults_runs.reported import find_untrue
from tests.faults_runs.site import DrivenRun, Site
from trimaran.errors import InputError
from trimaran.host.shared_memory import FOLDER, semaphore_prefix
from trimaran.run.folder import locked
from trimaran.run.network import is_free
from trimaran.run.runs import RunEvent, RunState, event_from_tree, events_stream
from trimaran.store import entries, find_store

if TYPE_CHECKING:
    from tests.faults_runs.drive import Report

MOST = 10
"""Faults of one run that are reported: the first ones say what the others follow from."""
PARTIAL = (".partial", ".part", ".tmp")
"""Ends of the names of files that are not whole yet."""


async def find_wrong(site: Site, run: DrivenRun, report: Report) -> list[str]:
    """Each completion trains once, the weights are those of an undisturbed replay, and what the run's
    watchers were shown can be true."""
    await site.look()
    config = run.config
    found = audit(
        run.rows,
        run.name,
        lambda name: read_payload(run.folder / "payloads", name),
        config.run.groups_per_step,
        config.run.max_lag,
    )
    wrong = [*found.wrong, *replay(config, found)]
    harms = [harm for one in site.runs for harm in one.harms if one is run or harm.is_shared]
    wrong += find_untrue(await _events(run), harms, run.run.starts)
    if run.run.state not in run.wanted:
        wrong.append(f"it is {run.run.state}: {run.run.error}")
    if run.run.state is RunState.SUCCEEDED and len(found.steps) != run.num_steps:
        wrong.append(f"{len(found.steps)} steps of {run.num_steps} were trained")
    if run.run.state is RunState.SUCCEEDED and found.open_groups:
        wrong.append(f"groups that never ended: {found.open_groups}")
    report.num_steps += len(found.steps)
    report.num_tokens += found.num_tokens
    more = [f"and {len(wrong) - MOST} more"] if len(wrong) > MOST else []
    return [f"{run.name}: {what}" for what in wrong[:MOST] + more]


def read_payload(folder: Path, name: str) -> bytes:
    """sha256 @ file : first byte : bytes."""
    _, file, start, size = re.split("[@:]", name)
    data = (folder / file).read_bytes()
    return data[int(start) : int(start) + int(size)]


async def _events(run: DrivenRun) -> list[RunEvent]:
    store = await find_store(run.context.store_url)
    assert store, f"{run.name} has no store"
    try:
        rows = entries(store, events_stream(run.name))
        return [event_from_tree(sequence, tree) async for sequence, tree in rows]
    finally:
        await store.close()


def find_left(site: Site) -> list[str]:
    """Of a site whose processes are gone: ports, locks and temporary files."""
    left = [str(path) for path in (site.folder / "temporary").rglob("*")]
    for run in site.runs:
        left += [str(path) for path in run.folder.rglob("*") if path.suffix in PARTIAL]
        left += map(str, FOLDER.glob(f"sem.{semaphore_prefix(run.folder)}-*"))
        for key, value in run.config.endpoints:
            addresses = (value,) if isinstance(value, str) else value or ()
            left += [f"{key} {address}" for address in addresses if not is_free(address)]
        try:
            with locked(run.folder):
                pass
        except InputError as error:
            left.append(str(error))
    return [f"left: {what}" for what in left]
