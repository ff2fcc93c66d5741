"""`trimaran weights`: which versions there are, which replica proved which, what is loaded now.

The weight-sync service answers while it runs; for a run that has ended, its store does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from commands.cli.inspect import weights_view as view
from commands.cli.manage.find_run import FoundRun, find_run, shorten, split_target
from services.weight_sync.ledger import VersionLedger
from trimaran.clients import CONTROL_SECONDS, WeightSyncClient
from trimaran.errors import DeadlineError, InputError, TrimaranError, UnavailableError
from trimaran.run.context import RunContext
from trimaran.store import read_store
from trimaran.types import Proof, VersionId, VersionRecord

LIVE = "live"
VERSION = re.compile(r"(\d+)\.(\d+)")

Records = Sequence[VersionRecord]


def list_versions(options: argparse.Namespace) -> int:
    found = find_run(options.run)
    records, source = _read_records(found)
    if options.json:
        versions = [view.version_values(record, record is records[0]) for record in records]
        return _print_json({"run": found.name, "source": source, "versions": versions})
    console = _console()
    console.print(f"{found.name}, {source}")
    console.print(view.versions_table(records) if records else "no version was committed")
    for record in records:
        for proof in record.proofs:
            if fault := view.proof_fault(proof, record):
                console.print(f"{record.policy.version} on {proof.replica}: {fault}")
    return 0


def show_version(options: argparse.Namespace) -> int:
    """[RUN] [VERSION]: the newest run and its live version unless named. 1 for a bad proof."""
    run, version = options.run, options.version
    if version is None and run is not None and _looks_like_version(run):
        run, version = None, run
    text = version or LIVE
    found = find_run(run)
    records, source = _read_records(found, limit=1 if text == LIVE else 0)
    record = _pick(records, text, found)
    faults = {proof.replica: view.proof_fault(proof, record) for proof in record.proofs}
    code = 1 if any(faults.values()) else 0
    is_live = record is records[0]
    if options.json:
        values = view.version_values(record, is_live)
        return _print_json({"run": found.name, "source": source, **values}, code)
    console = _console()
    console.print(f"{found.name}, {source}")
    live = " (live)" if is_live else ""
    console.print(f"version {record.policy.version}{live}, committed {view.format_time(record)}")
    size = f"{record.num_blocks:,} blocks, {record.num_bytes / 1e6:,.1f} MB"
    console.print(f"root {record.policy.root}, {size}")
    console.print(view.replicas_table(record.proofs, faults))
    return code


def verify(options: argparse.Namespace) -> int:
    """Reads everything back, now. 1 unless every replica asked for has the live version loaded."""
    found, replica = split_target(options.target)
    names = [replica] if replica else []
    before, proofs, unroutable, after = asyncio.run(_verify(found, names))
    faults = {proof.replica: view.read_back_fault(proof, (before, after)) for proof in proofs}
    faults |= unroutable
    num_right = sum(not fault for fault in faults.values())
    code = 0 if faults and num_right == len(faults) else 1
    live = after.policy
    if options.json:
        replicas = view.replica_values(proofs, faults)
        facts = {"run": found.name, "version": str(live.version), "root": live.root}
        return _print_json({**facts, "verified": code == 0, "replicas": replicas}, code)
    console = _console()
    if faults:
        console.print(view.replicas_table(proofs, faults))
    console.print(
        f"{num_right} of {len(faults)} replicas have loaded every block of version {live.version}"
        f" of {found.name}, root {live.root}"
    )
    return code


def _read_records(run: FoundRun, limit: int = 0) -> tuple[Records, str]:
    """Committed versions, newest first (`limit` 0 means all), and in words who says so."""
    problem = "no address is recorded"
    if run.weight_sync is not None:
        try:
            return asyncio.run(_ask(run, limit)), f"as weight sync at {run.weight_sync} knows it"
        except TrimaranError as error:
            problem = f"{run.weight_sync} {_describe(error)}"
    records = asyncio.run(_read_store(RunContext.in_folder(run.folder), limit))
    if records is None:
        return (), "which has no store yet"
    return records, f"as its store has it (weight sync: {problem})"


async def _read_store(run: RunContext, limit: int) -> Records | None:
    """None where nothing was recorded yet."""
    store = await read_store(run.store_url)
    if store is None:
        return None
    try:
        return await (await VersionLedger.open(store, run.run_id)).list_versions(limit)
    finally:
        await store.close()


async def _ask(run: FoundRun, limit: int) -> Records:
    assert run.weight_sync
    async with WeightSyncClient(run.weight_sync, run.caller, run.trust) as client:
        return await client.list_versions(limit)


async def _verify(
    run: FoundRun, names: Sequence[str]
) -> tuple[VersionRecord, tuple[Proof, ...], dict[str, str], VersionRecord]:
    """The live version before, the proofs, who has none and why, the live version after."""
    if run.weight_sync is None:
        raise _unanswered(run, UnavailableError("no address is recorded"))
    async with WeightSyncClient(run.weight_sync, run.caller, run.trust) as client:
        try:
            before = await client.list_versions(limit=1)
        except TrimaranError as error:
            raise _unanswered(run, error) from None
        if not before:
            raise UnavailableError(f"{run.name}: no version is live yet; ask again later")
        deadline = run.prove_timeout + CONTROL_SECONDS
        proofs, unroutable = await client.verify_replicas(names, deadline)
        after = await client.list_versions(limit=1)
    return before[0], proofs, unroutable, after[0]


def _unanswered(run: FoundRun, error: TrimaranError) -> InputError:
    where = f"at {run.weight_sync} " if run.weight_sync else ""
    return InputError(
        f"{run.name}: weight sync {where}{_describe(error)}, so nothing can be read back;"
        f" what was proven: trimaran weights show {run.folder}"
    )


def _describe(error: TrimaranError) -> str:
    """Another run's service may answer at the address of one that has ended."""
    silent = isinstance(error, UnavailableError | DeadlineError)
    return "does not answer" if silent else f"says: {error}"


def _looks_like_version(text: str) -> bool:
    return text == LIVE or VERSION.fullmatch(text) is not None


def _pick(records: Records, text: str, run: FoundRun) -> VersionRecord:
    known = shorten([str(record.policy.version) for record in records]) or "none yet"
    if not _looks_like_version(text):
        raise InputError(
            f"{text}: not a version; give LINEAGE.STEP, such as 0.12, or live (known: {known})"
        )
    if text == LIVE and records:
        return records[0]
    match = VERSION.fullmatch(text)
    version = VersionId(int(match[1]), int(match[2])) if match else None
    for record in records:
        if record.policy.version == version:
            return record
    raise InputError(f"{text}: no version of {run.name}; known: {known}")


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _print_json(values: dict[str, Any], code: int = 0) -> int:
    print(json.dumps(values, indent=2))
    return code
