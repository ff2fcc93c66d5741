"""What weight sync records of a run's weights, and how others read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimaran.store import Store
from trimaran.types import PolicyVersion, Proof, VersionId, VersionRecord


def weights_key(run_id: str) -> str:
    """Prefix of its store records, which `services.weight_sync.ledger` writes: `live`, `members`, `version/0.7` …"""
    return f"weight_sync/{run_id}"


def version_from_tree(run_id: str, tree: Mapping[str, Any]) -> VersionRecord:
    """A record `version/…`."""
    version = VersionId(*tree["version"])
    return VersionRecord(
        PolicyVersion(run_id, version, tree["root"]),
        tree["num_blocks"],
        tree["num_bytes"],
        tree["committed_at"],
        tuple(Proof(version, name, tree["root"], *row[:3]) for name, row in tree["proofs"].items()),
    )


def maker_name(replica: str, num_wrong: int) -> str:
    """Who a replica's tokens and proofs say that they are by, after so many wrong blocks of its weights."""
    return f"{replica}~{num_wrong}" if num_wrong else replica


@dataclass(frozen=True, slots=True)
class ReplicaWeights:
    """Example: ReplicaWeights("rollout-0", "rollout-0", VersionId(0, 7), fault="")"""

    name: str
    maker: str
    """As in its proofs: `maker_name`."""
    version: VersionId | None
    """That it holds; None before the first."""
    fault: str
    """Why it takes no part; empty where it does."""


@dataclass(frozen=True, slots=True)
class RunWeights:
    """Example: {proof.replica: proof.level for proof in weights.live.proofs}"""

    live: VersionRecord | None
    replicas: tuple[ReplicaWeights, ...]


async def read_weights(store: Store, run_id: str) -> RunWeights:
    key = weights_key(run_id)
    live, members = await store.get(f"{key}/live"), await store.get(f"{key}/members")
    version = await store.get(f"{key}/version/{live.value['version']}") if live else None
    replicas = [
        ReplicaWeights(
            row["name"],
            maker_name(row["name"], row["num_wrong"]),
            VersionId(*row["held"][1:3]) if row["held"] else None,
            row["reason"],
        )
        for row in (members.value if members else ())
        if not row["forgotten"]
    ]
    return RunWeights(version and version_from_tree(run_id, version.value), tuple(replicas))
