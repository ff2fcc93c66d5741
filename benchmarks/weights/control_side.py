"""Weight sync's control side in a process of its own, with stand-ins for all that it calls."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.weights.versions import RUN_ID
from trimaran.types import (
    Caller,
    Manifest,
    Offer,
    Peer,
    PolicyVersion,
    Ranges,
    Replica,
    Routing,
    Source,
    Staged,
    TransferGroup,
    TransferLimits,
    VersionId,
)

if TYPE_CHECKING:
    from services.weight_sync.coordinator import Coordinator
    from services.weight_sync.ledger import VersionLedger
    from trimaran.wire import rpc

T = TypeVar("T")

CALL_SECONDS = 60.0
PLAN_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_seconds: float
    resident_bytes: int


def stand_in_peer(number: int) -> Peer:
    """Each on a host of its own, so that collectives and relay are planned."""
    return Peer(f"127.0.0.1:{10_000 + number}", "key", f"host-{number}")


class ControlSide:
    def __init__(self, model: Path, work: Path, num_replicas: int) -> None:
        self._manifest = _make_manifest(model)
        self._num_replicas = num_replicas
        self._loop = asyncio.new_event_loop()
        self._trainer: Any = StandInTrainer(self._manifest)
        self._coordinator: Coordinator
        self._server: rpc.Server
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._run(self._start(work))

    async def _start(self, work: Path) -> None:
        from services.weight_sync.coordinator import Coordinator
        from services.weight_sync.server import WeightSyncServicer
        from trimaran.config import WeightSyncSection
        from trimaran.store.sqlite import SqliteStore
        from trimaran.v1 import weight_sync_pb2, weight_sync_pb2_grpc
        from trimaran.wire import rpc

        store = SqliteStore(work / "store.sqlite")
        self._epoch = await store.next_epoch(RUN_ID)
        self._coordinator = Coordinator(
            RUN_ID,
            WeightSyncSection(),
            await VersionLedger.open(store, RUN_ID),
            connect_senders=lambda caller: [self._trainer],
            connect_rollout=self._connect_rollout,
        )
        self._coordinator.start()
        add = weight_sync_pb2_grpc.add_WeightSyncServiceServicer_to_server
        servicer = WeightSyncServicer(self._coordinator)
        service = rpc.service(weight_sync_pb2.DESCRIPTOR, add, servicer)
        self._server = rpc.Server("127.0.0.1:0", [service])
        await self._server.start()

    def address(self) -> str:
        return self._server.address

    def time_plans(self) -> dict[str, float]:
        """Median seconds of planning one version for all replicas, by what is planned."""
        from services.weight_sync.members.member import Member
        from services.weight_sync.staging.transfer_plan import plan_relay, plan_stage

        members = [
            Member(Replica(f"rollout-{n}", "127.0.0.1:1"), stand_in_peer(n), 1)
            for n in range(self._num_replicas)
        ]
        half = len(members) // 2
        offers = _four_offers(self._manifest)
        plans = {
            "collective_four_senders": lambda: plan_stage(
                self._manifest, offers, members, "collective", 2
            ),
            "relay_four_senders": lambda: plan_stage(self._manifest, offers, members, "relay", 2),
            "relay_from_half_to_half": lambda: plan_relay(
                self._manifest, offers, members[half:], members[:half], 2
            ),
        }
        return {name: _median_seconds(plan, PLAN_ROUNDS) for name, plan in plans.items()}

    def usage(self) -> Usage:
        import psutil

        process = psutil.Process()
        times = process.cpu_times()
        return Usage(times.user + times.system, process.memory_info().rss)

    def live(self) -> PolicyVersion | None:
        return self._coordinator.routing().live

    def publish_and_join(self, step: int) -> float:
        """Seconds until the first version is live and every replica is proven."""
        begin = time.perf_counter()
        self._run(self._publish(step, everybody=True))
        return time.perf_counter() - begin

    def publish(self, step: int) -> float:
        begin = time.perf_counter()
        routing = self._run(self._publish(step, everybody=False))
        seconds = time.perf_counter() - begin
        assert len(routing.routable) == self._num_replicas, routing.describe_unroutable()[:500]
        return seconds

    def _connect_rollout(self, replica: Any, caller: Any) -> Any:
        return StandInRollout(self._manifest)

    async def _publish(self, step: int, everybody: bool) -> Routing:
        self._trainer.step = step
        version = self._trainer.version
        routing, _ = await self._coordinator.publish(Caller(RUN_ID, self._epoch), version)
        deadline = time.monotonic() + CALL_SECONDS
        while everybody and len(routing.routable) < self._num_replicas:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(routing.routable)} replicas are routable")
            await asyncio.sleep(0.01)
            routing = self._coordinator.routing()
        return routing

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)

    def close(self) -> None:
        async def close() -> None:
            await self._server.stop()
            await self._coordinator.close()

        self._run(close())
        self._loop.call_soon_threadsafe(self._loop.stop)


class StandInTrainer:
    """One sender; it moves nothing."""

    def __init__(self, manifest: Manifest, step: int = 0, offer: Offer | None = None) -> None:
        """`offer`: of one among several; without, it has everything."""
        blocks = ((0, manifest.num_blocks),)
        self._offer = offer or Offer(Peer("127.0.0.1:9999", "key", "trainer"), blocks, "/memory")
        self._manifest = manifest
        self.step = step

    @property
    def version(self) -> PolicyVersion:
        return PolicyVersion(RUN_ID, VersionId(0, self.step), self._manifest.root)

    async def get_policy_version(self, timeout: float) -> tuple[PolicyVersion, Manifest]:
        return self.version, self._manifest

    async def get_offer(self, timeout: float) -> tuple[PolicyVersion, Offer]:
        return self.version, self._offer

    async def open_transfer(self, group: TransferGroup, timeout: float) -> TransferGroup:
        return TransferGroup(group.group_id, group.nonce, group.world_size, "127.0.0.1:9998")

    async def send_weights(
        self,
        version: VersionId,
        group_id: int,
        blocks: Ranges,
        base_root: str,
        limits: TransferLimits,
    ) -> int:
        return 0

    async def close(self) -> None:
        return


class StandInRollout:
    """Has staged and loaded whatever it is told to."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    async def stage_weights(
        self,
        version: PolicyVersion,
        manifest: Manifest,
        sources: Sequence[Source],
        limits: TransferLimits,
        attempt: str,
        keep_live: bool,
    ) -> Staged:
        return Staged(manifest.root, manifest.num_blocks, {}, "/shadow")

    async def commit_weights(self, version: PolicyVersion, maker: str, timeout: float) -> float:
        return 0.0

    async def sleep(self, timeout: float) -> None:
        return

    async def abort_weights(self, version: VersionId, attempt: str) -> None:
        return

    async def read_back(
        self, version: VersionId, blocks: Ranges, timeout: float
    ) -> tuple[str, ...]:
        from weights.version.manifest import list_digests

        digests = list_digests(self._manifest)
        return tuple(digest for first, end in blocks for digest in digests[first:end])

    async def close(self) -> None:
        return


def _make_manifest(model: Path) -> Manifest:
    """The model's real blocks, with digests that are none."""
    from dataclasses import replace

    from safetensors import safe_open

    from trimaran.model.folder import read_model_folder
    from weights.version.grid import cut_tensors
    from weights.version.manifest import build_manifest

    with safe_open(model / "model.safetensors", framework="np") as file:
        slices = [(name, file.get_slice(name)) for name in file.keys()]  # noqa: SIM118
        specs = [(name, part.get_dtype(), tuple(part.get_shape())) for name, part in slices]
    tensors = cut_tensors(specs, read_model_folder(model))
    digested = [replace(t, digests=(f"{0:032x}",) * t.num_blocks) for t in tensors]
    return build_manifest(digested)


def _four_offers(manifest: Manifest) -> list[Offer]:
    quarter = manifest.num_blocks // 4
    bounds = [0, quarter, 2 * quarter, 3 * quarter, manifest.num_blocks]
    return [
        Offer(Peer(f"127.0.0.1:{n}", "key", "trainer"), ((bounds[n], bounds[n + 1]),), "/memory")
        for n in range(4)
    ]


def _median_seconds(work: Any, rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)
