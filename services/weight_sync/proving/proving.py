"""PROOF: is what an engine has loaded what the manifest says?

    join, fault ─▶ every block once, in portions ─▶ routable
    commit      ─▶ of each routable replica, beside generation, what `run.proof` asks for:
                     delivered   every other time the next window of the blocks, in rotation
                     sampled     every time
                     loaded      all of them, every time

The next commit waits until each replica's read-back has got somewhere: at `loaded` until it is
through, else until a first portion has come. Then it cuts the rest off, and what is left of a window
is read first after it. So every block comes round, however fast versions follow each other. A replica
that joins is read on in the same way, across versions, until each of its blocks was right once; the next
STAGE waits for it, because it is staged with the others.

A block that differs takes its replica out of routing at once. The proof of the
version then keeps the fault, and once repaired the replica makes tokens under another
maker's name: which of the tokens were made before is not known. So is it with the versions
before: each that the replica served since the block was last read back and right has the fault too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from services.weight_sync.ledger import VersionLedger
from services.weight_sync.members.member import Member
from services.weight_sync.members.pool import ReplicaPool
from services.weight_sync.proving.windows import Windows, find_wrong, portions
from services.weight_sync.tasks import cancel, log_failure, to_the_end
from trimaran.config import WeightSyncSection
from trimaran.errors import TrimaranError
from trimaran.host.call_waits import within
from trimaran.types import Manifest, PolicyVersion, Proof, ProofLevel, Ranges
from weights.version.layout import count, subtract, unite

logger = logging.getLogger(__name__)

PORTION_BYTES = 256 << 20
"""Read back in one call. The engine itself lets generation go on in between."""
SAMPLE_PORTION_BYTES = 32 << 20
"""The same where a commit may cut it off: so much at most is lost then."""
FIRST_WAIT_SECONDS = 1.0
"""For a first portion. Twice as long each time that it was in vain, up to `prove_timeout`."""


class _Unready:
    """Replicas whose read-back has not got far enough for the next version."""

    def __init__(self) -> None:
        self._got_somewhere: dict[str, asyncio.Event] = {}
        self._seconds = FIRST_WAIT_SECONDS

    def add(self, name: str) -> None:
        self._got_somewhere.setdefault(name, asyncio.Event())

    def discard(self, name: str) -> None:
        if event := self._got_somewhere.pop(name, None):
            event.set()

    def clear(self) -> None:
        for name in list(self._got_somewhere):
            self.discard(name)

    async def wait(self, names: Iterable[str], longest: float, is_patient: bool) -> None:
        """Until none of them is left. Up to `longest` seconds, from the first time on if `is_patient`."""
        events = [self._got_somewhere[name] for name in names if name in self._got_somewhere]
        try:
            async with asyncio.timeout(longest if is_patient else self._seconds):
                for event in events:
                    await event.wait()
        except TimeoutError:
            self._seconds = min(2 * self._seconds, longest)
        else:
            if events:
                self._seconds = FIRST_WAIT_SECONDS


@dataclass(slots=True)
class _Reading:
    """What a read-back has shown so far."""

    live: PolicyVersion
    manifest: Manifest
    maker: str
    right: Ranges = ()
    """Blocks that were read."""
    wrong: tuple[int, ...] = ()
    """Blocks that differ; the read-back ends with the portion that has some."""
    fault: str = ""

    @property
    def proof(self) -> Proof:
        num_blocks = self.manifest.num_blocks
        num_right = count(self.right)
        return Proof(
            self.live.version, self.maker, self.live.root, num_blocks, num_right, self.fault
        )


class ReadBackProver:
    """Reads engines back, and records what that proves.

    Example:

        proof = await prover.prove(member, live, manifest)
        proof.level is ProofLevel.LOADED and not proof.fault  # all of it is right
    """

    def __init__(
        self,
        config: WeightSyncSection,
        pool: ReplicaPool,
        ledger: VersionLedger,
        level: ProofLevel,
    ) -> None:
        """`level`: that each version reaches on each routable replica before the next is committed."""
        self._config = config
        self._pool = pool
        self._ledger = ledger
        self._level = level
        self._windows = Windows(config.sample_share)
        self._sampling: asyncio.Task[None] | None = None
        self._sampled, self._joining = _Unready(), _Unready()
        self._sample_seconds: float | None = None

    async def prove(self, member: Member, live: PolicyVersion, manifest: Manifest) -> Proof:
        """Full read-back; with a fault, the replica has left routing.

        Raises OutOfOrderError when the replica does not hold the version, and
        whatever keeps it from answering.
        """
        reading = self._begin(member, live, manifest)
        everything = ((0, manifest.num_blocks),)
        await self._read_back(member, reading, everything, PORTION_BYTES)
        await to_the_end(self._conclude(member, reading))
        return reading.proof

    async def prove_joiner(self, member: Member, live: PolicyVersion, manifest: Manifest) -> Proof:
        """What is left to read of it, until it is routable; also of one that is cut off, what was
        read counts. At `loaded`, all of the version. At least a window of it, so that its tokens reach
        `sampled`. Raises what `prove` raises."""
        num_blocks = manifest.num_blocks
        ranges: Ranges = ((0, num_blocks),)
        if not self._is_full:
            left = subtract(ranges, self._pool.members.newest(member).right)
            # Where all was right at versions before, something of this one is read all the same.
            ranges = left or self._windows.next(member.name, num_blocks, live.version.step // 2)
        return await self._read_on(member, live, manifest, ranges, self._joining)

    async def let_join(self, members: Sequence[Member]) -> None:
        """Before a STAGE on them: waits until the read-back of each that joins has got somewhere."""
        await self._wait_for(self._joining, members)

    def resume(self) -> None:
        """After a restart: what was under way may be missing."""
        if self._level is not ProofLevel.DELIVERED:
            self.start_sample()

    def start_sample(self) -> None:
        """After a commit, on each routable replica."""
        live, manifest = self._ledger.live, self._ledger.manifest
        if live is None or manifest is None:
            return
        due: dict[Member, Ranges] = {}
        proven = (m for m in self._ledger.members if m.is_proven_at(live))
        for number, member in enumerate(proven):
            if ranges := self._due(member, number, live, manifest):
                due[member] = ranges
        for member in due:
            self._sampled.add(member.name)
        if due:
            self._sampling = asyncio.create_task(self._sample(live, manifest, due), name="sample")
            self._sampling.add_done_callback(log_failure)

    async def finish_sample(self) -> None:
        """Before the next commit: waits until each read-back has got somewhere, and cuts the rest off."""
        await self._wait_for(self._sampled, tuple(self._pool.members))
        await self.stop()

    async def _wait_for(self, unready: _Unready, members: Sequence[Member]) -> None:
        is_patient = self._level is not ProofLevel.DELIVERED
        names = [member.name for member in members]
        await unready.wait(names, self._config.prove_timeout, is_patient)

    async def stop(self) -> None:
        if self._sampling is not None:
            await cancel([self._sampling])
            self._sampling = None
            self._sampled.clear()  # a task that was cancelled at once has not begun

    def metrics(self) -> dict[str, float]:
        """The share of the live version's blocks, over its replicas, that were read back and were right;
        and the seconds of the last sample."""
        proofs = self._ledger.proofs.values()
        found: dict[str, float] = {}
        if held := sum(proof.num_blocks for proof in proofs):
            found["weight_sync/proof/share"] = sum(proof.num_loaded for proof in proofs) / held
        if self._sample_seconds is not None:
            found["weight_sync/proof/seconds"] = self._sample_seconds
        return found

    def _due(self, member: Member, number: int, live: PolicyVersion, manifest: Manifest) -> Ranges:
        """What is to be read back of the member's weights. `number`: its place among the members, so
        that they begin with different windows."""
        step, num_blocks = live.version.step, manifest.num_blocks
        if self._level is ProofLevel.LOADED:
            known = self._ledger.proofs.get(member.maker)
            is_there = known is not None and known.level is ProofLevel.LOADED
            return () if is_there else ((0, num_blocks),)
        is_turn = self._level is ProofLevel.SAMPLED or step % 2 == 0
        if not is_turn and not self._windows.is_open(member.name):
            return ()
        return self._windows.next(member.name, num_blocks, step // 2 + number)

    async def _sample(
        self, live: PolicyVersion, manifest: Manifest, due: Mapping[Member, Ranges]
    ) -> None:
        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for member, ranges in due.items():
                tasks.create_task(self._sample_one(member, live, manifest, ranges))
        self._sample_seconds = time.monotonic() - started

    async def _sample_one(
        self, member: Member, live: PolicyVersion, manifest: Manifest, ranges: Ranges
    ) -> None:
        try:
            await self._read_on(member, live, manifest, ranges, self._sampled)
        except TrimaranError as error:
            await self._pool.exclude({member: f"read-back of {live.version}: {error}"})

    async def _read_on(
        self,
        member: Member,
        live: PolicyVersion,
        manifest: Manifest,
        ranges: Ranges,
        unready: _Unready,
    ) -> Proof:
        """A read-back that the next version may cut off, once the member is `unready` no more. What was
        read by then counts."""
        reading = self._begin(member, live, manifest)

        def note(portion: Ranges) -> None:
            self._windows.read(member.name, portion)
            if not self._is_full:
                unready.discard(member.name)

        unready.add(member.name)
        try:
            size = PORTION_BYTES if self._is_full else SAMPLE_PORTION_BYTES
            await self._read_back(member, reading, ranges, size, note)
        finally:
            try:
                if reading.right or reading.fault or not ranges:
                    await to_the_end(self._conclude(member, reading))
            finally:
                unready.discard(member.name)
        return reading.proof

    @property
    def _is_full(self) -> bool:
        """Whether the next version waits until all is read back."""
        return self._level is ProofLevel.LOADED

    def _begin(self, member: Member, live: PolicyVersion, manifest: Manifest) -> _Reading:
        return _Reading(live, manifest, self._pool.members.newest(member).maker)

    async def _read_back(
        self,
        member: Member,
        reading: _Reading,
        ranges: Ranges,
        portion_bytes: int,
        note: Callable[[Ranges], None] = lambda portion: None,
    ) -> None:
        """Into `reading`. `note` is called with each portion that is right."""
        version, manifest = reading.live.version, reading.manifest
        async with (
            self._pool.connected([member]) as rollouts,
            within(self._config.prove_timeout, f"read-back of {version}"),
        ):
            for portion in portions(manifest, ranges, portion_bytes):
                digests = await rollouts[member].read_back(
                    version, portion, self._config.prove_timeout
                )
                reading.wrong, reading.fault = find_wrong(manifest, portion, digests)
                if reading.fault:
                    break
                reading.right = unite(reading.right, portion)
                read = partial(Member.read, blocks=portion, maker=reading.maker)
                self._pool.members.tell(member, read)
                note(portion)

    async def _conclude(self, member: Member, reading: _Reading) -> None:
        members, live, proof = self._pool.members, reading.live, reading.proof
        if proof.fault:  # whatever is loaded by now, tokens of it may still wait for their batch
            await self._ledger.save_fault(proof, reading.right, reading.wrong)
        if not members.is_current(member):
            return
        is_live = self._ledger.live == live and members.newest(member).holds(live)
        if not is_live and not proof.fault:
            return  # it has another version, or is about to, and is proven at that one
        known = self._ledger.proofs.get(proof.replica, proof)
        # Also where it has loaded the next version since: a delta may have left the block as it was.
        if fault := proof.fault or known.fault:
            await self._pool.condemn(member, f"proof of {live.version}: {fault}", reading.maker)
            return
        right = unite(self._ledger.read_back.get(proof.replica, ()), reading.right)
        await self._ledger.save_proofs([replace(proof, num_loaded=count(right))], right)
        await self._pool.admit(member, live, proof.num_blocks)
