"""A trainer and replicas that move no bytes, know what they hold, and record what is asked of them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trimaran.errors import OutOfOrderError, TransferError, UnavailableError
from trimaran.store.sqlite import SqliteStore
from trimaran.types import (
    Caller,
    CollectiveSource,
    Delta,
    Manifest,
    MemorySource,
    Offer,
    Peer,
    PolicyVersion,
    Ranges,
    Replica,
    Source,
    Staged,
    TensorInfo,
    TransferGroup,
    TransferLimits,
    Transport,
    VersionId,
)
from weights.version.layout import count, numbers_of
from weights.version.manifest import build_manifest, digest_bytes, list_digests

RUN = "run"
CALLER = Caller(RUN, 1)
NUM_BLOCKS = 5


def manifest_of(step: int) -> Manifest:
    """Blocks 0..3 of w and block 4, which is b: 40 bytes."""
    w = [digest_bytes(b"w %d %d" % (step, index)) for index in range(4)]
    b = digest_bytes(b"b %d" % step)
    return build_manifest(
        [
            TensorInfo("w", "F32", (8,), 0, (2, 4, 6), tuple(w)),
            TensorInfo("b", "F32", (2,), 0, (), (b,)),
        ],
    )


def version_of(step: int, lineage: int = 0) -> PolicyVersion:
    root = manifest_of(step).root
    return PolicyVersion(RUN, VersionId(lineage, step), root)


def peer_of(name: str, host: str = "", backend: str = "gloo") -> Peer:
    return Peer(f"127.0.0.1:{name}", f"key of {name}", host, backend)


@dataclass
class FakeReplica:
    """One process: what it does when asked, and what it holds."""

    name: str
    stage: str = "ok"
    """ok, gone, silent, broken (a transfer error of its own), torn (only in a group) or wrong
    (another root)."""
    commit: str = "ok"
    """ok, gone or silent."""
    proof: str = "ok"
    """ok, gone, silent, or wrong: block 2 is loaded wrong, however often it is loaded."""
    host: str = ""
    staged: PolicyVersion | None = None
    attempt: str = ""
    """Which stage brought it."""
    loaded: PolicyVersion | None = None
    maker: str = ""
    in_place: bool = False
    """It writes what changed alone where it loads on as the same maker: a wrong block stays wrong."""
    wrong: set[int] = field(default_factory=set)
    """Blocks that are loaded wrong until the next whole load."""
    answered_wrong: bool = False
    """A read-back has shown it."""
    checks_since_wrong: int = 0
    answered: set[int] = field(default_factory=set)
    """Blocks that were read back and were right, since it started or since one was wrong."""
    is_asleep: bool = False

    @property
    def replica(self) -> Replica:
        return Replica(self.name, f"127.0.0.1:{self.name}")

    @property
    def path(self) -> str:
        """Of its shadow."""
        return f"/shadow/{self.name}"

    def holds(self, version: PolicyVersion) -> bool:
        held = (self.staged, self.loaded)
        return any(v and (v.version, v.root) == (version.version, version.root) for v in held)


Hook = Callable[[str, VersionId], Awaitable[None]]
"""Given the replica's name and the version; what it raises the call raises."""


class CrashError(Exception):
    """The coordinator's process is gone."""


@dataclass
class World:
    """Everything behind the ports. A group with a member that is not ok fails for all of it."""

    step: int = 1
    trainer: str = "ok"
    """ok or gone."""
    shares: tuple[Ranges, ...] = (((0, NUM_BLOCKS),),)
    """What each sender offers."""
    host: str = ""
    backend: str = "gloo"
    """Of all processes."""
    delta: bool = False
    """Each offer has one, against the step before."""
    events: list[str] = field(default_factory=list)
    replicas: dict[str, FakeReplica] = field(default_factory=dict)
    groups: dict[int, list[FakeReplica]] = field(default_factory=dict)
    epochs: set[int] = field(default_factory=set)
    """In which the trainer was asked."""
    calls: list[tuple[str, int]] = field(default_factory=list)
    """Of weights, to replicas, each with its epoch."""
    keepers: list[str] = field(default_factory=list)
    """Who was asked to keep the live version's copy, one a stage."""
    hooks: dict[str, Hook] = field(default_factory=dict)
    """What else happens, by name: "stage", "commit", "abort" and "read back" before a replica does it,
    "staged" after it has staged."""
    points_left: int | None = None
    """Awaited points until the coordinator's process is gone; None for never."""

    def add(self, name: str, **behavior: Any) -> tuple[Replica, Peer]:
        process = self.replicas[name] = FakeReplica(name, **behavior)
        return process.replica, peer_of(name, process.host, self.backend)

    def connect_senders(self, caller: Caller) -> list[Any]:
        self.epochs.add(caller.epoch)
        return [FakeTrainer(self, rank) for rank in range(len(self.shares))]

    def connect_rollout(self, replica: Replica, caller: Caller) -> Any:
        return FakeRollout(self, self.replicas[replica.name], caller.epoch)

    @property
    def crashed(self) -> bool:
        return self.points_left is not None and self.points_left <= 0

    async def point(self) -> None:
        """Of a crashed coordinator no call reaches anybody, and no answer reaches it."""
        await asyncio.sleep(0)
        if self.points_left is not None:
            self.points_left -= 1
        if self.crashed:
            await asyncio.Event().wait()

    async def collective(self, group_id: int, timeout: float) -> None:
        """What every member of a group sees of the others."""
        await asyncio.sleep(0)  # all have been asked
        behaviors = {member.stage for member in self.groups[group_id]}
        if "silent" in behaviors:
            await asyncio.sleep(timeout)
        if behaviors & {"gone", "silent", "broken", "torn"}:
            raise TransferError("connection closed by a peer")

    async def hook(self, what: str, process: FakeReplica, version: VersionId) -> None:
        if what in self.hooks:
            await self.hooks[what](process.name, version)

    def relay(self, version: PolicyVersion, peers: Sequence[Peer]) -> str:
        """The name of the first peer that can give the version."""
        for peer in peers:
            name = peer.relay.rpartition(":")[2]
            process = self.replicas.get(name)
            if process and process.stage in ("ok", "torn") and process.holds(version):
                return name
            if name.startswith("trainer") and self.holds(version):
                return name
        raise TransferError("no peer has it")

    def find_owner(self, version: PolicyVersion, path: str) -> FakeReplica | None:
        """Where its memory can be read: its process lives."""
        found = [process for process in self.replicas.values() if process.path == path]
        return next((one for one in found if one.stage != "gone" and one.holds(version)), None)

    def holds(self, version: PolicyVersion) -> bool:
        held = version_of(self.step)
        return self.trainer == "ok" and (held.version, held.root) == (version.version, version.root)


@dataclass
class FakeTrainer:
    world: World
    rank: int = 0

    async def get_policy_version(self, timeout: float) -> tuple[PolicyVersion, Manifest]:
        await self._ask()
        return version_of(self.world.step), manifest_of(self.world.step)

    async def get_offer(self, timeout: float) -> tuple[PolicyVersion, Offer]:
        await self._ask()
        world, blocks = self.world, self.world.shares[self.rank]
        sizes = (1,) * sum(end - first for first, end in blocks)
        delta = Delta(version_of(world.step - 1).root, sizes) if world.delta else None
        peer = peer_of(f"trainer{self.rank}", world.host, world.backend)
        return version_of(world.step), Offer(peer, blocks, f"/memory/{self.rank}", delta)

    async def _ask(self) -> None:
        await self.world.point()
        if self.world.trainer == "gone":
            raise UnavailableError("trainer: connection refused")

    async def open_transfer(self, group: TransferGroup, timeout: float) -> TransferGroup:
        await self.world.point()
        self.world.events.append(f"open {group.group_id} for {group.world_size}")
        self.world.groups[group.group_id] = []
        return replace(group, rendezvous="127.0.0.1:1")

    async def send_weights(
        self,
        version: VersionId,
        group_id: int,
        blocks: Ranges,
        base_root: str,
        limits: TransferLimits,
    ) -> int:
        await self.world.point()
        what = f"delta of {version}" if base_root else f"{version}"
        self.world.events.append(f"send {what} in {group_id}")
        if self.world.trainer == "dies":
            self.world.trainer = "gone"
            raise UnavailableError("trainer: connection reset")
        await self.world.collective(group_id, limits.timeout)
        return 4

    async def close(self) -> None:
        pass


@dataclass
class FakeRollout:
    world: World
    process: FakeReplica
    epoch: int = 0

    async def stage_weights(
        self,
        version: PolicyVersion,
        manifest: Manifest,
        sources: Sequence[Source],
        limits: TransferLimits,
        attempt: str,
        keep_live: bool,
    ) -> Staged:
        process = self.process
        await self.world.hook("stage", process, version.version)
        await self.world.point()
        self.world.calls.append((f"stage {version.version} on {process.name}", self.epoch))
        if keep_live:
            self.world.keepers.append(process.name)
        assert sum(e - f for s in sources for f, e in s.blocks) == manifest.num_blocks
        self._check(process.stage)
        if process.stage == "silent":
            self.world.events.append(f"{process.name} stages {version.version} and hangs")
            for source in sources:
                if isinstance(source, CollectiveSource):
                    self.world.groups[source.group.group_id].append(process)
            await asyncio.sleep(3600)
        ways = [await self._take(version, source, limits.timeout) for source in sources]
        is_shared = any(way.startswith("in the memory of") for way in ways)
        is_own = ways == [f"in the memory of {process.name}"]
        self.world.events.append(
            f"{process.name} stages {version.version} {' and '.join(dict.fromkeys(ways))}"
        )
        process.staged, process.attempt = version, attempt
        await self.world.hook("staged", process, version.version)
        await self.world.point()
        root = "another root" if process.stage == "wrong" else version.root
        if is_shared:
            return Staged(root, manifest.num_blocks, {}, process.path if is_own else "")
        return Staged(root, manifest.num_blocks, _bytes_of(sources), process.path)

    async def _take(self, version: PolicyVersion, source: Source, timeout: float) -> str:
        process, delta = self.process, source.delta
        patched = "a delta " if delta else ""
        if delta:
            held = process.loaded and process.loaded.root
            if held != delta.base_root:
                raise OutOfOrderError(f"{process.name} holds {held}")
        if isinstance(source, CollectiveSource):
            assert source.group.rendezvous
            group_id = source.group.group_id
            self.world.groups[group_id].append(process)
            await self.world.collective(group_id, timeout)
            return f"{patched}in {group_id}"
        if process.stage == "broken":
            raise TransferError(f"{process.name}: its own network is broken")
        if isinstance(source, MemorySource):
            assert self.world.host == process.host and self.world.holds(version)
            return f"from {source.path}"
        if source.shared and (owner := self.world.find_owner(version, source.shared)):
            assert owner.host == process.host
            return f"in the memory of {owner.name}"
        return f"{patched}from {self.world.relay(version, source.peers)}"

    async def commit_weights(self, version: PolicyVersion, maker: str, timeout: float) -> float:
        process = self.process
        await self.world.hook("commit", process, version.version)
        await self.world.point()
        self._check(process.commit)
        if process.commit == "silent":
            await asyncio.sleep(3600)
        if process.staged is None or not _same(process.staged, version):
            is_loaded = process.loaded and _same(process.loaded, version) and not process.is_asleep
            if is_loaded and process.maker == maker:
                return 0.0
            raise OutOfOrderError(f"{version.version} is not staged on {process.name}")
        self.world.events.append(f"{process.name} commits {version.version}")
        self.world.calls.append((f"commit {version.version} on {process.name}", self.epoch))
        if not (process.in_place and process.maker == maker):
            process.wrong = set()
        if process.proof == "wrong":
            process.wrong = {2}
        process.loaded, process.staged, process.maker = version, None, maker
        process.is_asleep = False
        process.answered_wrong, process.checks_since_wrong = False, 0
        await self.world.point()
        return 0.25

    async def sleep(self, timeout: float) -> None:
        await self.world.point()
        self._check(self.process.commit)
        self.world.events.append(f"{self.process.name} sleeps")
        self.process.is_asleep = True

    async def abort_weights(self, version: VersionId, attempt: str) -> None:
        await self.world.hook("abort", self.process, version)
        await self.world.point()
        self.world.calls.append((f"abort {version} on {self.process.name}", self.epoch))
        self.world.events.append(f"{self.process.name} aborts {version}")
        self._check(self.process.stage)
        if self.process.stage == "silent":
            raise UnavailableError(f"{self.process.name}: no answer")
        staged = self.process.staged
        if staged and (staged.version, self.process.attempt) == (version, attempt):
            self.process.staged = None

    async def read_back(
        self, version: VersionId, blocks: Ranges, timeout: float
    ) -> tuple[str, ...]:
        process = self.process
        await self.world.hook("read back", process, version)
        await self.world.point()
        self._check(process.proof)
        if process.proof == "silent":
            self.world.events.append(f"{process.name} reads back nothing and hangs")
            await asyncio.sleep(3600)
        if process.loaded is None or process.loaded.version != version or process.is_asleep:
            raise OutOfOrderError(f"{process.name} does not hold {version}")
        numbers = list(numbers_of(blocks))
        self.world.events.append(f"{process.name} reads back {numbers[0]}..{numbers[-1]}")
        digests = list_digests(manifest_of(version.step))
        answer = tuple("f" * 32 if n in process.wrong else digests[n] for n in numbers)
        await self.world.point()
        if process.wrong.isdisjoint(numbers):
            process.answered.update(numbers)
        else:
            process.answered_wrong, process.answered = True, set()
        return answer

    def _check(self, behavior: str) -> None:
        if behavior == "gone":
            raise UnavailableError(f"{self.process.name}: connection refused")

    async def close(self) -> None:
        pass


def _bytes_of(sources: Sequence[Source]) -> dict[Transport, int]:
    """8 a block, 1 a piece of a delta."""
    found: dict[Transport, int] = {}
    for source in sources:
        size = (1 if source.delta else 8) * count(source.blocks)
        found[source.transport] = found.get(source.transport, 0) + size
    return found


def _same(one: PolicyVersion, other: PolicyVersion) -> bool:
    return (one.version, one.root) == (other.version, other.root)


async def take_over(folder: Path) -> Caller:
    """Another controller of the run begins: it draws its epoch from the run's store."""
    store = SqliteStore(folder / "store.sqlite")
    caller = Caller(RUN, await store.next_epoch(RUN))
    await store.close()
    return caller


class RecordingStore(SqliteStore):
    """Records the commits; a crash may come before or after each write. CALLER has drawn its epoch."""

    def __init__(self, path, world: World) -> None:
        super().__init__(path)
        self._world = world

    async def newest_epoch(self, name) -> int:
        """It is the first that is asked."""
        return await super().newest_epoch(name) or await self.next_epoch(name)

    async def put(self, key, value, expected=None) -> int:
        self._crash_or_not()
        version = await super().put(key, value, expected)
        self._crash_or_not()
        return version

    async def put_fenced(self, records, name, epoch) -> None:
        self._crash_or_not()
        await super().put_fenced(records, name, epoch)
        [live] = [value for key, value in records.items() if key.endswith("/live")]
        self._world.events.append(f"record {live['version']}")
        self._crash_or_not()

    def _crash_or_not(self) -> None:
        if self._world.points_left is not None:
            self._world.points_left -= 1
        if self._world.crashed:
            raise CrashError("the process is gone")
