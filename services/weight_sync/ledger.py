"""What must still be known after a restart: versions, manifest, proofs, members, group numbers.

    prepare ── manifest of the coming version ─▶ the slot that the live one does not use
    commit ─── version record (names the one before) and commit record (names version and slot),
               in one transaction with the comparison of epochs

Only the commit record makes a version live. What was written before it, and is not
reached from it, does not count. Epochs are those that controllers draw from the same
store. Each call writes through to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.weight_sync.members.members import Members
from trimaran.run.runs import overdue_key
from trimaran.run.weights import version_from_tree, weights_key
from trimaran.store import Store, entries
from trimaran.types import (
    Caller,
    Manifest,
    PolicyVersion,
    Proof,
    Ranges,
    VersionId,
    VersionRecord,
)
from weights.version.layout import numbers_of, unite
from weights.version.manifest import manifest_from_json, manifest_to_json, num_bytes


class VersionLedger:
    """What is recorded of a run's versions, with a copy in memory of what is live.

    Example:

        ledger = await VersionLedger.open(store, "addition-20261120-120000")
        ledger.live  # None until a version is committed
        await ledger.list_versions(limit=5)
    """

    @classmethod
    async def open(cls, store: Store, run_id: str) -> VersionLedger:
        """Reads what was recorded last; nothing, epoch 0 and no members in a new run."""
        ledger = cls(store, run_id)
        await ledger._recover()
        return ledger

    def __init__(self, store: Store, run_id: str) -> None:
        """Use `open`."""
        self._store = store
        self._run_id = run_id
        self._key = weights_key(run_id)
        self.caller = Caller(run_id, 0)
        """The newest controller that is known."""
        self.members = Members()
        self.live: PolicyVersion | None = None
        self.manifest: Manifest | None = None
        self.proofs: dict[str, Proof] = {}
        """The live version's, by replica."""
        self.read_back: dict[str, Ranges] = {}
        """The live version's, by replica: the blocks that were read back and were right."""
        self.asleep = False
        """The replicas have left their devices to the trainer since the live version was committed."""
        self._slot = 1
        self._live_tree: dict[str, Any] = {}
        self._unwritten: dict[VersionId, dict[str, list[Any]]] = {}
        self._members_write = _SharedWrite(self._write_members)
        self._proofs_write = _SharedWrite(self._write_proofs)

    async def _recover(self) -> None:
        self.caller = Caller(self._run_id, await self.newest_epoch())
        self.members = Members.from_json(await self._get("members") or [], time.monotonic())
        if (commit := await self._get("live")) is None:
            return
        tree = self._live_tree = await self._get(f"version/{commit['version']}")
        record = version_from_tree(self._run_id, tree)
        self.live, self._slot = record.policy, commit["slot"]
        self.asleep = await self._get("asleep") == str(self.live.version)
        self.manifest = manifest_from_json(await self._get(f"manifest/{self._slot}"))
        self.proofs = {proof.replica: proof for proof in record.proofs}
        self.read_back = {name: _read_back(row) for name, row in tree["proofs"].items()}

    async def prepare(self, manifest: Manifest) -> None:
        """Before `commit` of the version that it is of."""
        await self._put(f"manifest/{1 - self._slot}", manifest_to_json(manifest))

    async def commit(
        self, caller: Caller, live: PolicyVersion, manifest: Manifest, proofs: Sequence[Proof]
    ) -> None:
        """The commit record: from its return on, `live` is the version, whatever dies.

        Raises StaleEpochError, and records nothing, when a newer controller than `caller` has
        drawn its epoch: the store compares and writes in one transaction.
        """
        tree = {
            "version": [live.version.lineage, live.version.step],
            "root": live.root,
            "num_blocks": manifest.num_blocks,
            "num_bytes": sum(num_bytes(tensor) for tensor in manifest.tensors),
            "committed_at": time.time(),
            "before": str(self.live.version) if self.live else None,
            "proofs": {proof.replica: _row(proof, ()) for proof in proofs},
        }
        slot = 1 - self._slot
        records = {
            f"{self._key}/version/{live.version}": tree,
            f"{self._key}/live": {"version": str(live.version), "slot": slot},
        }
        await self._store.put_fenced(records, self._run_id, caller.epoch)
        self.live, self.manifest, self._live_tree, self._slot = live, manifest, tree, slot
        self.proofs = {proof.replica: proof for proof in proofs}
        self.read_back = {}
        self.asleep = False  # what is recorded of it names the version before

    async def note_asleep(self, asleep: bool) -> None:
        """Until the next version is committed, or the replicas are to wake with the live one."""
        self.asleep = asleep and self.live is not None
        await self._put("asleep", str(self.live.version) if self.live and asleep else "")

    async def tell_overdue(self, why: Mapping[str, str]) -> None:
        """The launcher, of replicas that have not left their devices, with the reasons."""
        await self._store.put(overdue_key(self._run_id), dict(why))

    async def save_proofs(self, proofs: Sequence[Proof], right: Ranges = ()) -> None:
        """Each with its version, also when another is live by now: its tokens may still wait.

        `right`: the blocks that were read back of each and were right.
        """
        for proof in proofs:
            if self.live and proof.version == self.live.version:
                self.proofs[proof.replica] = proof
                self.read_back[proof.replica] = right
            self._unwritten.setdefault(proof.version, {})[proof.replica] = _row(proof, right)
        if proofs:
            await self._proofs_write()

    async def save_fault(self, proof: Proof, right: Ranges, wrong: Iterable[int]) -> None:
        """`right`, `wrong`: blocks of a read-back that has found the proof's fault.

        Every version that its maker had loaded since all the wrong blocks were last right has the
        fault too; so do those that it has loaded meanwhile, for a delta writes what changed alone.
        """
        newest = self._newest(proof)
        known, tainted = await self._find_tainted(proof, wrong)
        found = [(proof, unite(known, right)), *tainted]
        await self._save_faults(found)
        # Its engine may have loaded the next one while this was written.
        while newest != self._newest(proof):
            before, newest = newest, self._newest(proof)
            _, tainted = await self._find_tainted(proof, wrong)
            await self._save_faults([one for one in tainted if one[0].version > before])

    def _newest(self, proof: Proof) -> VersionId:
        return self.live.version if self.live else proof.version

    async def _save_faults(self, found: Sequence[tuple[Proof, Ranges]]) -> None:
        for one, blocks in found:
            await self.save_proofs([one], blocks)
        # After the proofs: nothing of what is listed trains from now on. Each is listed once.
        listed = {(one.version, one.replica) for one in await self.list_faults()}
        new = [one for one, _ in found if (one.version, one.replica) not in listed]
        rows = [[*_version(one), one.root, one.replica, *_row(one, ())[:3]] for one in new]
        await self._store.extend(f"{self._key}/faults", rows)

    async def _find_tainted(
        self, proof: Proof, wrong: Iterable[int]
    ) -> tuple[Ranges, list[tuple[Proof, Ranges]]]:
        """What was right of the proof's own version before, and the proofs of the versions after it and
        of those between it and the last good reading, newest first, each with its blocks."""
        unknown, known = set(wrong), Ranges(())
        tainted: list[tuple[Proof, Ranges]] = []
        is_later = True
        tree = await self._get(f"version/{self._newest(proof)}")
        while tree:
            version = VersionId(*tree["version"])
            row = tree["proofs"].get(proof.replica)
            right = _read_back(row) if row else ()
            is_later = is_later and version != proof.version
            if not is_later:
                unknown -= set(numbers_of(right))
            if version == proof.version:
                known = right
            if not unknown:
                break
            if row and version != proof.version:
                # One that has a fault already may be in its proof alone: the list is written after it.
                fault = row[2] or f"found at {proof.version}, not read back since: {proof.fault}"
                before = Proof(version, proof.replica, tree["root"], row[0], row[1], fault)
                tainted.append((before, right))
            tree = await self._get(f"version/{tree['before']}") if tree["before"] else None
        return known, tainted

    async def list_faults(self, after: int = 0) -> tuple[Proof, ...]:
        """Proofs of the run that have a fault, in the order in which it was found, without the first
        `after` of them."""
        found: list[Proof] = []
        async for _, row in entries(self._store, f"{self._key}/faults", after):
            lineage, step, root, maker, num_blocks, num_loaded, fault = row
            version = VersionId(lineage, step)
            found.append(Proof(version, maker, root, num_blocks, num_loaded, fault))
        return tuple(found)

    async def save_members(self) -> None:
        await self._members_write()

    async def newest_epoch(self) -> int:
        """The last one that a controller of this run has drawn."""
        return await self._store.newest_epoch(self._run_id)

    async def next_group_id(self) -> int:
        return await self._store.next_epoch(f"{self._key}/groups")

    async def list_versions(self, limit: int = 0) -> tuple[VersionRecord, ...]:
        """Committed ones, newest first; `limit` 0 means all."""
        tree = self._live_tree or None
        records: list[VersionRecord] = []
        while tree and (len(records) < limit or not limit):
            record = version_from_tree(self._run_id, tree)
            if not records:
                record = replace(record, proofs=tuple(self.proofs.values()))
            records.append(record)
            tree = await self._get(f"version/{tree['before']}") if tree["before"] else None
        return tuple(records)

    async def list_proofs(self, versions: Sequence[VersionId]) -> tuple[Proof, ...]:
        """Those of the live version from memory, of others from the store."""
        found: list[Proof] = []
        for version in sorted(set(versions)):
            if self.live and version == self.live.version:
                found += self.proofs.values()
            elif self.live and version < self.live.version:
                tree = await self._get(f"version/{version}")
                found += version_from_tree(self._run_id, tree).proofs if tree else ()
        return tuple(found)

    async def _write_members(self) -> None:
        await self._put("members", self.members.to_json())

    async def _write_proofs(self) -> None:
        for version in list(self._unwritten):
            rows, key = self._unwritten.pop(version), f"version/{version}"
            try:
                if tree := await self._get(key):
                    tree["proofs"] |= rows
                    await self._put(key, tree)
            except BaseException:  # the next write has them
                self._unwritten[version] = rows | self._unwritten.get(version, {})
                raise

    async def _get(self, name: str) -> Any:
        record = await self._store.get(f"{self._key}/{name}")
        return record and record.value

    async def _put(self, name: str, value: Any) -> None:
        await self._store.put(f"{self._key}/{name}", value)


class _SharedWrite:
    """Calls that come while a write is under way share the next one."""

    def __init__(self, write: Callable[[], Awaitable[None]]) -> None:
        self._write = write
        self._lock = asyncio.Lock()
        self._num_calls = self._num_written = 0

    async def __call__(self) -> None:
        """Returns once what stood in memory when it was called is on the disk."""
        self._num_calls += 1
        mine = self._num_calls
        async with self._lock:
            if self._num_written < mine:
                upto = self._num_calls
                await self._write()
                self._num_written = upto


def _version(proof: Proof) -> tuple[int, int]:
    return proof.version.lineage, proof.version.step


def _row(proof: Proof, right: Ranges) -> list[Any]:
    return [proof.num_blocks, proof.num_loaded, proof.fault, right]


def _read_back(row: Sequence[Any]) -> Ranges:
    """Which blocks were right."""
    return tuple((first, end) for first, end in row[3])
