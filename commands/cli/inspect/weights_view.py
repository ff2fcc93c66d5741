"""Versions and proofs as tables for people and as plain values for machines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from trimaran.types import Proof, VersionRecord

ROOT_DIGITS = 12
"""How many of a root's 32 hex digits the table of versions shows."""


def proof_fault(proof: Proof, record: VersionRecord) -> str:
    """Why the proof is not one of the version; empty when it is good."""
    if proof.fault:
        return proof.fault
    return "" if proof.root == record.policy.root else f"holds root {proof.root}"


def read_back_fault(proof: Proof, live: Sequence[VersionRecord]) -> str:
    """The same after a full read-back; `live` are the versions that were live meanwhile."""
    for record in live:
        if record.policy.version == proof.version:
            missing = proof.num_blocks - proof.num_loaded
            unread = f"{missing} of {proof.num_blocks} blocks were not read back" if missing else ""
            return proof_fault(proof, record) or unread
    return f"holds version {proof.version}, which is not live"


def versions_table(records: Sequence[VersionRecord]) -> Table:
    table = _table("version", "committed", "root", "blocks", "MB", "read back", "proven by")
    for record in records:
        loaded = sum(proof.num_loaded for proof in record.proofs)
        blocks = sum(proof.num_blocks for proof in record.proofs)
        good = sum(not proof_fault(proof, record) for proof in record.proofs)
        table.add_row(
            f"{record.policy.version}{' live' if record is records[0] else ''}",
            format_time(record),
            record.policy.root[:ROOT_DIGITS],
            f"{record.num_blocks:,}",
            f"{record.num_bytes / 1e6:,.1f}",
            f"{loaded / blocks:.1%}" if blocks else "-",
            f"{good} of {len(record.proofs)}",
        )
    return table


def replicas_table(proofs: Sequence[Proof], faults: Mapping[str, str]) -> Table:
    """One row a name in `faults`; a replica without a proof has only its fault."""
    table = _table("replica", "version", "blocks", "read back", "proof")
    by_name = {proof.replica: proof for proof in proofs}
    for name, fault in sorted(faults.items()):
        proof = by_name.get(name)
        numbers = ("-", "-", "-")
        if proof:
            numbers = (str(proof.version), f"{proof.num_blocks:,}", f"{proof.num_loaded:,}")
        table.add_row(name, *numbers, fault or "good")
    return table


def format_time(record: VersionRecord) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.committed_at))


def version_values(record: VersionRecord, is_live: bool) -> dict[str, Any]:
    faults = {proof.replica: proof_fault(proof, record) for proof in record.proofs}
    return {
        "version": str(record.policy.version),
        "root": record.policy.root,
        "live": is_live,
        "num_blocks": record.num_blocks,
        "num_bytes": record.num_bytes,
        "committed_at": record.committed_at,
        "replicas": replica_values(record.proofs, faults),
    }


def replica_values(proofs: Sequence[Proof], faults: Mapping[str, str]) -> list[dict[str, Any]]:
    by_name = {proof.replica: proof for proof in proofs}
    return [
        {"replica": name, **_proof_values(by_name.get(name)), "fault": fault}
        for name, fault in sorted(faults.items())
    ]


def _proof_values(proof: Proof | None) -> dict[str, Any]:
    if proof is None:
        return {}
    return {
        "version": str(proof.version),
        "root": proof.root,
        "num_blocks": proof.num_blocks,
        "num_loaded": proof.num_loaded,
    }


def _table(*headings: str) -> Table:
    """The first column is a text, the last one may be long, between them are numbers."""
    first, *numbers, last = headings
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(last, overflow="fold")
    return table
