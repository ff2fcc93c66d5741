"""What others read of what weight sync records."""

from __future__ import annotations

from pathlib import Path

from services.weight_sync.ledger import VersionLedger
from tests.weight_sync.fakes import CALLER, RUN, manifest_of, version_of
from tests.weight_sync.proving.test_proving import proof
from trimaran.run.weights import ReplicaWeights, RunWeights, read_weights
from trimaran.store.sqlite import SqliteStore
from trimaran.types import Peer, ProofLevel, Replica, VersionId


async def test_the_live_version_its_proofs_and_the_replicas_are_read(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    ledger = await VersionLedger.open(store, RUN)
    assert await read_weights(store, RUN) == RunWeights(None, ())
    for _ in range(2):
        ledger.members.register(Replica("a", "here:1"), Peer("here:2", "key", "here", "gloo"), 0.0)
    for happened in (
        lambda member: member.condemn("wrong", "a", 0.0),
        lambda member: member.load(version_of(1), "a~1"),
        lambda member: member.fail("no answer", 0.0),
    ):
        ledger.members.tell(ledger.members.get("a"), happened)
    await ledger.save_members()
    await ledger.prepare(manifest_of(1))
    await ledger.commit(CALLER, version_of(1), manifest_of(1), [proof("a", 1, 0)])
    await ledger.save_proofs([proof("a", 1, 2)], ((0, 2),))
    weights = await read_weights(store, RUN)
    assert weights.replicas == (ReplicaWeights("a", "a~1", VersionId(0, 1), "no answer"),)
    assert weights.live and weights.live.policy.version == VersionId(0, 1)
    assert [one.level for one in weights.live.proofs] == [ProofLevel.SAMPLED]
    await store.close()
