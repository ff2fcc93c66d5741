"""PROOF: is what an engine has loaded what the manifest says?

    join, fault    ─▶ full read-back, in portions ─▶ routable
    every other    ─▶ a sample of each routable replica, in rotation,
    commit            beside generation; the next commit cuts it off

A block that differs takes its replica out of routing at once. The proof of the
version then keeps the fault, and once mended the replica makes tokens under another
maker's name: which of the tokens were made before is not known.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from services.weight_sync.control.ledger import VersionLedger
from services.weight_sync.control.members import Member
from services.weight_sync.control.pool import ReplicaPool
from services.weight_sync.control.tasks import cancel, deadline, log_failure, to_the_end
from services.weight_sync.data.layout import count, numbers_of
from services.weight_sync.data.manifest import Block, list_blocks, list_digests
from trimaran.config import WeightSyncSection
from trimaran.errors import TrimaranError
from trimaran.types import Manifest, PolicyVersion, Proof, Ranges

logger = logging.getLogger(__name__)

PORTION_BYTES = 256 << 20
"""Read back in one call. The engine itself lets generation go on in between."""


def sample_blocks(num_blocks: int, share: float, turn: int) -> Ranges:
    """A window of the blocks; ceil(1 / share) turns in a row cover all of them."""
    num_turns = math.ceil(1 / share)
    turn %= num_turns
    first, end = turn * num_blocks // num_turns, (turn + 1) * num_blocks // num_turns
    return ((first, end),) if first < end else ()


def split_portions(blocks: Sequence[Block], ranges: Ranges, portion_bytes: int) -> Iterator[Ranges]:
    """`blocks`: all of the manifest. Each portion has a block at least, and few bytes more than asked."""
    for first, end in ranges:
        size = 0
        for number in range(first, end):
            size += blocks[number].num_bytes
            if size >= portion_bytes:
                yield ((first, number + 1),)
                first, size = number + 1, 0
        if first < end:
            yield ((first, end),)


@lru_cache(maxsize=16)  # the same for every replica that joins
def _portions(manifest: Manifest, ranges: Ranges) -> tuple[Ranges, ...]:
    return tuple(split_portions(list_blocks(manifest.tensors), ranges, PORTION_BYTES))


def find_fault(manifest: Manifest, ranges: Ranges, digests: Iterable[str]) -> str:
    """Names the first block whose digest is not the manifest's; empty when all are right."""
    expected = list_digests(manifest)
    found = list(digests)
    if len(found) != count(ranges):
        return f"{len(found)} digests were read back for {count(ranges)} blocks"
    for number, digest in zip(numbers_of(ranges), found, strict=True):
        if digest != expected[number]:
            block = list_blocks(manifest.tensors)[number]
            return (
                f"{block.tensor.name} block {block.index} ({block.start}..{block.stop} of axis"
                f" {block.tensor.axis}): loaded {digest} instead of {expected[number]}"
            )
    return ""


class ReadBackProver:
    """Reads engines back, and records what that proves.

    Example:

        proof = await prover.prove(member, live, manifest)
        proof.num_loaded == proof.num_blocks and not proof.fault  # all of it is right
    """

    def __init__(self, config: WeightSyncSection, pool: ReplicaPool, ledger: VersionLedger) -> None:
        self._config = config
        self._pool = pool
        self._ledger = ledger
        self._sampling: asyncio.Task[None] | None = None
        self._sample_seconds: float | None = None

    async def prove(self, member: Member, live: PolicyVersion, manifest: Manifest) -> Proof:
        """Full read-back; with a fault, the replica has left routing.

        Raises OutOfOrderError when the replica does not hold the version, and
        whatever keeps it from answering.
        """
        proof = await self._read_back(member, live, manifest, ((0, manifest.num_blocks),))
        await to_the_end(self._conclude(member, live, proof))
        return proof

    def start_sample(self) -> None:
        """After a commit. Every other one: which, and what is read, follows from the step alone."""
        live, manifest = self._ledger.live, self._ledger.manifest
        if live is not None and manifest is not None and live.version.step % 2 == 0:
            self._sampling = asyncio.create_task(self._sample(live, manifest), name="sample")
            self._sampling.add_done_callback(log_failure)

    async def stop(self) -> None:
        """Before the next commit, which must not wait for what is being read back."""
        if self._sampling is not None:
            await cancel([self._sampling])
            self._sampling = None

    def metrics(self) -> dict[str, float]:
        """Of the live version: how many of its replicas' blocks were read back and were right,
        and the seconds of the last sample."""
        proofs = self._ledger.proofs.values()
        found: dict[str, float] = {}
        if held := sum(proof.num_blocks for proof in proofs):
            found["weight_sync/proof/share"] = sum(proof.num_loaded for proof in proofs) / held
        if self._sample_seconds is not None:
            found["weight_sync/proof/seconds"] = self._sample_seconds
        return found

    async def _sample(self, live: PolicyVersion, manifest: Manifest) -> None:
        started = time.monotonic()
        members = self._ledger.members.proven(live)
        async with asyncio.TaskGroup() as tasks:
            for number, member in enumerate(members):
                turn = live.version.step // 2 + number
                ranges = sample_blocks(manifest.num_blocks, self._config.sample_share, turn)
                tasks.create_task(self._sample_one(member, live, manifest, ranges))
        self._sample_seconds = time.monotonic() - started

    async def _sample_one(
        self, member: Member, live: PolicyVersion, manifest: Manifest, ranges: Ranges
    ) -> None:
        try:
            proof = await self._read_back(member, live, manifest, ranges)
            await to_the_end(self._conclude(member, live, proof))
        except TrimaranError as error:
            await self._pool.exclude({member: f"read-back of {live.version}: {error}"})

    async def _read_back(
        self, member: Member, live: PolicyVersion, manifest: Manifest, ranges: Ranges
    ) -> Proof:
        maker = self._pool.members.newest(member).maker
        num_loaded, fault = 0, ""
        async with (
            self._pool.connected([member]) as rollouts,
            deadline(self._config.prove_timeout, f"read-back of {live.version}"),
        ):
            for portion in _portions(manifest, ranges):
                digests = await rollouts[member].read_back(
                    live.version, portion, self._config.prove_timeout
                )
                if fault := find_fault(manifest, portion, digests):
                    break
                num_loaded += count(portion)
        return Proof(live.version, maker, live.root, manifest.num_blocks, num_loaded, fault)

    async def _conclude(self, member: Member, live: PolicyVersion, proof: Proof) -> None:
        members = self._pool.members
        if proof.fault:  # whatever is loaded by now, tokens of it may still wait for their batch
            await self._ledger.save_proofs([proof])
        if not members.is_current(member) or not members.get(member.name).holds(live):
            return  # what was read back is loaded no longer
        if self._ledger.live != live and not proof.fault:
            return  # it is about to take another version, and is proven at that one
        known = self._ledger.proofs.get(proof.replica, proof)
        if fault := proof.fault or known.fault:
            await self._pool.condemn(member, f"proof of {live.version}: {fault}")
            return
        num_loaded = max(known.num_loaded, proof.num_loaded)
        await self._ledger.save_proofs([replace(proof, num_loaded=num_loaded)])
        if proof.num_loaded == proof.num_blocks:
            await self._pool.admit(member)
