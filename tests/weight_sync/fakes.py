"""A trainer and replicas that move no bytes and record what is asked of them."""

import asyncio
from dataclasses import dataclass, field

from services.weight_sync.manifest import build_manifest, digest_bytes
from trimaran.errors import TransferError, UnavailableError
from trimaran.store import SqliteStore
from trimaran.types import (
    Caller,
    Manifest,
    PolicyVersion,
    Replica,
    TensorInfo,
    TransferGroup,
    VersionId,
    VersionState,
)

RUN = "run"
CALLER = Caller(RUN, 1)


def manifest_of(step: int) -> Manifest:
    return build_manifest([TensorInfo("w", "F32", (1,), digest_bytes(b"%d" % step))])


def version_of(step: int, lineage: int = 0) -> PolicyVersion:
    root = manifest_of(step).root
    return PolicyVersion(RUN, VersionId(lineage, step), root, VersionState.STAGING)


@dataclass
class FakeReplica:
    """One process: what it does when asked, and what it holds."""

    name: str
    stage: str = "ok"
    """ok, gone, silent, broken (a transfer error of its own) or wrong (another root)."""
    commit: str = "ok"
    """ok or gone."""
    staged: PolicyVersion | None = None
    loaded: PolicyVersion | None = None

    @property
    def replica(self) -> Replica:
        return Replica(self.name, f"127.0.0.1:{self.name}")


@dataclass
class World:
    """Everything behind the ports. A group with a member that is not ok fails for all of it."""

    step: int = 1
    trainer: str = "ok"
    """ok or gone (while sending)."""
    events: list[str] = field(default_factory=list)
    replicas: dict[str, FakeReplica] = field(default_factory=dict)
    groups: dict[int, list[FakeReplica]] = field(default_factory=dict)
    epochs: set[int] = field(default_factory=set)

    def add(self, name: str, **behavior: str) -> Replica:
        self.replicas[name] = FakeReplica(name, **behavior)
        return self.replicas[name].replica

    def connect_trainer(self, caller: Caller) -> "FakeTrainer":
        self.epochs.add(caller.epoch)
        return FakeTrainer(self)

    def connect_rollout(self, replica: Replica, caller: Caller) -> "FakeRollout":
        return FakeRollout(self, self.replicas[replica.name])

    async def collective(self, group_id: int, timeout: float) -> None:
        """What every member of a group sees of the others."""
        await asyncio.sleep(0)  # all have been asked
        behaviors = {member.stage for member in self.groups[group_id]}
        if "silent" in behaviors:
            await asyncio.sleep(timeout)
        if behaviors & {"gone", "silent", "broken"}:
            raise TransferError("connection closed by a peer")


@dataclass
class FakeTrainer:
    world: World

    async def get_policy_version(self, timeout: float) -> tuple[PolicyVersion, Manifest]:
        return version_of(self.world.step), manifest_of(self.world.step)

    async def open_transfer(self, group: TransferGroup, timeout: float) -> TransferGroup:
        self.world.events.append(f"open {group.group_id} for {group.world_size}")
        self.world.groups[group.group_id] = []
        return TransferGroup(group.group_id, group.nonce, group.world_size, "127.0.0.1:1")

    async def send_weights(
        self, version: VersionId, group_id: int, bucket_bytes: int, timeout: float
    ) -> int:
        self.world.events.append(f"send {version} in {group_id}")
        if self.world.trainer == "gone":
            raise UnavailableError("trainer: connection refused")
        await self.world.collective(group_id, timeout)
        return 4

    async def close(self) -> None:
        pass


@dataclass
class FakeRollout:
    world: World
    process: FakeReplica

    async def stage_weights(
        self,
        version: PolicyVersion,
        manifest: Manifest,
        group: TransferGroup,
        rank: int,
        bucket_bytes: int,
        timeout: float,
    ) -> str:
        process = self.process
        self.world.events.append(f"{process.name} stages {version.version} in {group.group_id}")
        self.world.groups[group.group_id].append(process)
        if process.stage == "gone":
            raise UnavailableError(f"{process.name}: connection refused")
        if process.stage == "silent":
            await asyncio.sleep(3600)
        await self.world.collective(group.group_id, timeout)
        process.staged = version
        return "another root" if process.stage == "wrong" else version.root

    async def commit_weights(self, version: PolicyVersion, timeout: float) -> float:
        process = self.process
        self.world.events.append(f"{process.name} commits {version.version}")
        if process.commit == "gone" or process.staged is None:
            raise UnavailableError(f"{process.name}: connection refused")
        process.loaded, process.staged = version, None
        return 0.25

    async def abort_weights(self, version: VersionId) -> None:
        self.world.events.append(f"{self.process.name} aborts {version}")
        if self.process.stage in ("gone", "silent"):
            raise UnavailableError(f"{self.process.name}: connection refused")

    async def close(self) -> None:
        pass


class RecordingStore(SqliteStore):
    def __init__(self, path, events: list[str]) -> None:
        super().__init__(path)
        self._events = events

    def put(self, key, value) -> None:
        super().put(key, value)
        if key.endswith("/live"):
            self._events.append(f"record {value['version'][0]}.{value['version'][1]}")
